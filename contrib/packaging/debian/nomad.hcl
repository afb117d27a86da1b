# A client of Nomad with the task driver longshore. Nomad reads all files of this
# directory in the order of their names; a plugin_dir of a later file overrides
# this one, and then needs a link to /usr/bin/longshore.
plugin_dir = "/usr/lib/nomad/plugins"

# Without it Nomad asks drivers for no stats.
telemetry {
  publish_allocation_metrics = true
}

# The name is the file's in plugin_dir.
plugin "longshore" {
  config {
  }
}
