"""Pure functions ``EngineView -> plotly.graph_objects.Figure``; no browser and no engine needed to test them."""
