"""A Scrapy project whose spiders do what users' spiders do, the odd things too."""
