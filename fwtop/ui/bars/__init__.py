"""The lines around a tab: header, graph, tab bar, status, footer, time bar, toasts."""
