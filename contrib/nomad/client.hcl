plugin_dir = "/opt/nomad/plugins"

client {
  enabled = true
}

telemetry {
  publish_allocation_metrics = true
}

# The name is the file's in plugin_dir.
plugin "longshore" {
  # args = ["-name=docker"]
  config {
    volumes {
      enabled = true
    }
    gc {
      image_delay = "10m"
    }
  }
}
