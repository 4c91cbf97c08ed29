def url_of(p): return ""
