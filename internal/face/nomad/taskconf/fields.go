// Package taskconf has the keys of a task's block config, and reads it. Keys of Nomad's docker
// driver have the same names; keys of other drivers of Nomad's that this one cannot have are
// refused with advice.
//
// It must not know how a container is made of it. Start reading at Fields, then
// Task.
package taskconf

import (
	"slices"

	"github.com/longshore/longshore/internal/face/nomad/schema"
)

// Fields is the schema of the block.
func Fields() []schema.Field {
	fields := []schema.Field{
		{Name: "auth", Kind: schema.Block, Fields: append(keys(schema.String, "username", "password", "email", "server_address", "helper", "config"), keys(schema.Bool, "tls_verify")...)},
		{Name: "devices", Kind: schema.Texts, Fields: keys(schema.String, "host_path", "container_path", "cgroup_permissions")},
		{Name: "mount", Kind: schema.Blocks, Fields: mountFields()},
		{Name: "mounts", Kind: schema.Blocks, Fields: mountFields()},
		{Name: "grants", Kind: schema.Block, Fields: keys(schema.String, "document")},
		{Name: "healthchecks", Kind: schema.Block, Fields: keys(schema.Bool, "disable")},
		{Name: "logging", Kind: schema.Block, Fields: slices.Concat(keys(schema.String, "type", "driver"), keys(schema.Number, "max_files", "max_file_size"), keys(schema.Map, "config", "options"))},
	}
	fields = append(fields, keys(schema.String, "image", "image_pull_policy", "image_pull_timeout", "rootfs", "command", "work_dir", "hostname",
		"network_mode", "ipc_mode", "pid_mode", "uts_mode", "userns_mode", "cpuset_cpus", "runtime", "stop_signal",
		"load", "ipv4_address", "ipv6_address", "mac_address", "cgroupns", "volume_driver", "isolation", "working_dir", "userns", "sleep_after")...)
	fields = append(fields, schema.Field{Name: "entrypoint", Kind: schema.Words}, schema.Field{Name: "shm_size", Kind: schema.Size})
	fields = append(fields, podmanFields()...)
	fields = append(fields, keys(schema.Strings, "args", "cap_add", "cap_drop", "dns_servers", "dns_search_domains", "dns_options",
		"extra_hosts", "group_add", "ports", "egress", "security_opt", "tmpfs", "volumes", "cdi_devices", "network_aliases")...)
	fields = append(fields, keys(schema.Bool, "force_pull", "privileged", "readonly_rootfs", "init", "tty", "interactive", "cpu_hard_limit", "auth_soft_fail", "advertise_ipv6_address")...)
	fields = append(fields, keys(schema.Number, "pids_limit", "cpu_cfs_period", "memory_hard_limit", "oom_score_adj", "container_exists_attempts")...)
	return append(fields, keys(schema.Map, "env", "labels", "sysctl", "ulimit", "storage_opt", "port_map")...)
}

func mountFields() []schema.Field {
	return append(keys(schema.String, "type", "source", "target"),
		schema.Field{Name: "readonly", Kind: schema.Bool},
		schema.Field{Name: "bind_options", Kind: schema.Block, Fields: keys(schema.String, "propagation")},
		schema.Field{Name: "tmpfs_options", Kind: schema.Block, Fields: keys(schema.Number, "size", "mode")},
		schema.Field{Name: "volume_options", Kind: schema.Block, Fields: append(slices.Concat(keys(schema.Bool, "no_copy"), keys(schema.String, "subpath")),
			schema.Field{Name: "labels", Kind: schema.Map},
			schema.Field{Name: "driver_config", Kind: schema.Block, Fields: append(keys(schema.String, "name"), keys(schema.Map, "options")...)})},
		schema.Field{Name: "image_options", Kind: schema.Block, Fields: keys(schema.String, "subpath")},
	)
}

func keys(kind schema.Kind, names ...string) []schema.Field {
	list := make([]schema.Field, len(names))
	for i, n := range names {
		list[i] = schema.Field{Name: n, Kind: kind}
	}
	return list
}
