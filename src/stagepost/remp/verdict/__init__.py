"""From the receipts of many validators to one verdict and one trace."""
