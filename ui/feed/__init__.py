"""What every tab is told, several times a second: the header, the clock, figures as what changed, and panes."""
