"""Where to clear fuel breaks before wildfires come: landscapes, fires that spread over them, an environment of both."""
