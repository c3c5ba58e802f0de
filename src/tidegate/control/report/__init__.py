"""The report of the week: samples of what gateways say, a minute each, and what can be told from them."""
