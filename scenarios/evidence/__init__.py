"""Published measurements beside their forecasts."""
