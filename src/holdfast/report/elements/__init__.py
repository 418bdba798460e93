"""What a page is composed of: numbers as text, tables, figures and pictures."""
