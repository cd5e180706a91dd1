"""For use elsewhere: trained models with a config beside their weights, and records as a table."""
