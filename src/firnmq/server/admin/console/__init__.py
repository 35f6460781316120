"""The console: a page in the browser, and what it asks the node beyond the rest of the API."""
