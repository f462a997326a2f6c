"""One job: entry, discovery, supervision, coordinator, output tree."""
