"""The example project: three spiders, joined to clusterscrapy by one line of settings."""
