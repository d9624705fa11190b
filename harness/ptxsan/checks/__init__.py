"""What is checked: races, bounds, undefined values, proxies; and what is found, with its place."""
