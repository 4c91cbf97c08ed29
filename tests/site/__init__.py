"""A real local web site for tests, benchmarks and the demo: it logs every request it is sent.

``process.py`` starts it from a test, ``server.py`` from a shell; ``sites.py`` knows what each site
holds, and so which pages a correct crawl must ask for.
"""
