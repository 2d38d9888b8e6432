"""Every metric that rayguard has: name, type, labels, help."""
