"""Answers as sentences, tables and figures."""
