"""The right to work on items: taken just ahead of need, kept, and handed back."""
