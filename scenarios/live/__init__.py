"""Scenarios on a real server, and the runs recorded there beside their forecasts."""
