"""A project as scrapy-redis' users have it; ``settings.py`` differs from theirs in one line."""
