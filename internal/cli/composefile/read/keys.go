package read

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Support classifies a key.
type Support string

// The kinds of support.
const (
	Works   Support = "works"
	Differs Support = "differs"
	Ignored Support = "ignored" // has a meaning for others, none on one node
	Refused Support = "refused"
)

// Key is a key of a Compose file. "*" in its path is any name and "[]" the elements of a list.
type Key struct {
	Path    string
	Support Support
	Note    string // the difference, or the key to write instead
}

// keysBelow makes keys that work without a note.
func keysBelow(prefix string, names ...string) (list []Key) {
	for _, n := range names {
		list = append(list, Key{prefix + n, Works, ""})
	}
	return list
}

// Keys returns all known keys. docs/guide/compose.md has them as a table.
func Keys() []Key {
	const s = "services.*."
	return slices.Concat(
		[]Key{
			{"name", Works, ""},
			{"version", Ignored, "the files need no version"},
			{"include", Works, "local files"},
			{"services.*.extends", Works, "local files"},
			{"services.*.profiles", Works, ""},
		},
		keysBelow(s, "image", "command", "restart", "environment", "env_file", "working_dir", "user", "hostname", "labels", "label_file", "container_name", "expose", "tmpfs", "stop_signal",
			"stop_grace_period", "init", "privileged", "cap_add", "cap_drop", "read_only", "sysctls", "ulimits", "shm_size", "extra_hosts", "dns", "dns_search", "dns_opt",
			"mem_limit", "memswap_limit", "mem_reservation", "cpus", "cpu_shares", "cpuset", "pids_limit", "oom_score_adj", "scale", "platform", "tty", "stdin_open", "group_add",
			"blkio_config", "device_cgroup_rules", "domainname", "cgroup", "cpu_quota", "cpu_period", "runtime", "annotations", "mac_address", "attach", "volumes_from"),
		[]Key{
			{s + "entrypoint", Differs, "an empty one drops the command of the image, too"},
			{s + "pull_policy", Differs, "all but build"},
			{s + "network_mode", Differs, "bridge, host, none, service:NAME and container:NAME"},
			{s + "security_opt", Differs, "as longshore run --security-opt; programs gain no privileges without no-new-privileges:false"},
			{s + "devices", Works, "paths, and names of the Container Device Interface"},
			{s + "gpus", Differs, "all, or device_ids; no count"},
			{s + "links", Differs, "the names of services; write other names as aliases below networks of the linked service"},
			{s + "pid", Differs, "host, service:NAME, container:NAME or nothing"},
			{s + "ipc", Differs, "host, private, shareable, service:NAME, container:NAME or nothing"},
			{s + "uts", Differs, "host or nothing"},
			{s + "userns_mode", Differs, "host or private"},
			{s + "develop", Ignored, "up does not watch files"},
			{s + "logging.driver", Differs, "json-file and local, which both are the agent's log, none, and [services](logging.md)"},
			{s + "logging.options", Differs, "max-size and max-file, and those of a service"},
		},
		keysBelow(s+"depends_on.*.", "condition", "required", "restart"),
		keysBelow(s+"networks.*.", "aliases", "ipv4_address", "ipv6_address", "mac_address", "priority", "gw_priority", "use_service_name_alias"),
		[]Key{
			{s + "networks.*.interface_name", Differs, "not on the first network of a service"},
			{s + "networks.*.link_local_ips", Refused, "leave it out"},
			{s + "networks.*.driver_opts", Refused, "leave it out"},
		},
		keysBelow(s+"ports.[].", "target", "host_ip", "protocol"),
		[]Key{
			{s + "ports.[].published", Differs, "one port, or a range of as many ports as target; not a range to choose from"},
			{s + "ports.[].mode", Ignored, ""},
			{s + "ports.[].name", Ignored, ""},
			{s + "ports.[].app_protocol", Ignored, ""},
		},
		keysBelow(s+"volumes.[].", "source", "target", "read_only", "bind.propagation", "bind.create_host_path", "volume.nocopy", "volume.subpath", "image.subpath", "tmpfs.size", "tmpfs.mode"),
		[]Key{
			{s + "volumes.[].type", Differs, "bind, volume, tmpfs and image"},
			{s + "volumes.[].consistency", Ignored, ""},
			{s + "volumes.[].bind.selinux", Works, ""},
			{s + "volumes.[].bind.recursive", Refused, "leave it out"},
			{s + "volumes.[].volume.labels", Refused, "leave it out"},
		},
		keysBelow(s+"secrets.[].", "source", "target", "uid", "gid", "mode"), keysBelow(s+"configs.[].", "source", "target", "uid", "gid", "mode"),
		keysBelow(s+"healthcheck.", "test", "interval", "timeout", "retries", "start_period", "start_interval", "disable"),
		keysBelow(s+"deploy.", "replicas", "resources.limits.cpus", "resources.limits.memory", "resources.limits.pids", "resources.reservations.memory"),
		[]Key{
			{s + "deploy.mode", Differs, "replicated"},
			{s + "deploy.resources.reservations.cpus", Ignored, "write cpu_shares"},
			{s + "deploy.resources.reservations.devices", Differs, "as gpus"},
			{s + "deploy.resources.reservations.generic_resources", Refused, "leave it out"},
			{s + "deploy.restart_policy.condition", Works, "before restart"},
			{s + "deploy.restart_policy.max_attempts", Works, "of on-failure"},
			{s + "deploy.restart_policy.delay", Ignored, "the delays are those of restart"},
			{s + "deploy.restart_policy.window", Ignored, "the delays are those of restart"},
			{s + "deploy.labels", Ignored, "they are a service's of a Swarm"},
			{s + "deploy.placement", Ignored, "there is one node"},
			{s + "deploy.endpoint_mode", Ignored, "names have the addresses of containers"},
			{s + "deploy.update_config", Ignored, "up replaces one container after the other"},
			{s + "deploy.rollback_config", Ignored, "up does not roll back"},
		},
		[]Key{
			{s + "build", Refused, "build the image elsewhere, then pull it or load it with longshore import, and name it in image"},
			{s + "external_links", Refused, "put both containers on one external network"},
			{s + "provider", Refused, "leave the service out"},
			{s + "models", Refused, "leave it out"},
			{s + "credential_spec", Refused, "leave it out"},
			{s + "isolation", Refused, "leave it out"},
			{s + "storage_opt", Differs, "size only"},
			{s + "cpu_count", Refused, "write cpus"},
			{s + "cpu_percent", Refused, "write cpus"},
			{s + "cpu_rt_period", Refused, "write cpus"},
			{s + "cpu_rt_runtime", Refused, "write cpus"},
			{s + "mem_swappiness", Differs, "with cgroup v1 alone"},
			{s + "oom_kill_disable", Differs, "with cgroup v1 alone"},
			{s + "cgroup_parent", Refused, "leave it out"},
			{s + "use_api_socket", Refused, "leave it out"},
			{s + "pre_start", Refused, "write a service of its own, and depends_on with service_completed_successfully"},
			{s + "post_start", Refused, "write a service of its own that depends on this one"},
			{s + "pre_stop", Refused, "handle stop_signal in the program"},
			{s + "umask", Refused, "leave it out"},
			{s + "volume_driver", Refused, "write driver below volumes"},
		},
		keysBelow("networks.*.", "name", "external", "internal", "labels", "enable_ipv6", "ipam.config.[].subnet", "ipam.config.[].gateway", "ipam.config.[].ip_range", "ipam.config.[].aux_addresses"),
		[]Key{
			{"networks.*.driver", Differs, "bridge"},
			{"networks.*.driver_opts", Differs, "com.docker.network.driver.mtu"},
			{"networks.*.attachable", Works, "all are"},
			{"networks.*.enable_ipv4", Differs, "true"},
			{"networks.*.ipam.driver", Differs, "default"},
			{"networks.*.ipam.options", Refused, "leave it out"},
		},
		keysBelow("volumes.*.", "name", "external", "labels"),
		[]Key{{"volumes.*.driver", Differs, "local"}, {"volumes.*.driver_opts", Works, "type, device and o"}},
		keysBelow("secrets.*.", "name", "file", "environment", "content"), keysBelow("configs.*.", "name", "file", "environment", "content"),
		[]Key{
			{"secrets.*.labels", Ignored, ""},
			{"configs.*.labels", Ignored, ""},
			{"secrets.*.external", Refused, "write file, environment or content"},
			{"configs.*.external", Refused, "write file, environment or content"},
			{"secrets.*.driver", Refused, "write file or environment"},
			{"secrets.*.driver_opts", Refused, "write file or environment"},
			{"secrets.*.template_driver", Refused, "write the text"},
			{"configs.*.driver", Refused, "write file or content"},
			{"configs.*.driver_opts", Refused, "write file or content"},
			{"configs.*.template_driver", Refused, "write the text"},
			{"models", Refused, "leave it out"},
			{"jobs", Refused, "write a service"},
		},
	)
}

// known has the keys by path, and the paths that lead to others.
type known struct {
	keys  map[string]Key
	above map[string]bool
}

func newKnown() known {
	k := known{map[string]Key{}, map[string]bool{}}
	for _, key := range Keys() {
		k.keys[key.Path] = key
		part := strings.Split(key.Path, ".")
		for i := range part {
			k.above[strings.Join(part[:i], ".")] = true
		}
	}
	return k
}

// check refuses the keys of the merged project that are not possible, and notes those without effect.
func (t *translator) check() error {
	data, err := t.p.MarshalJSON()
	if err != nil {
		return err
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	t.walk(newKnown(), doc, "", nil)
	return nil
}

// walk checks one value. pattern is its place in the table, path that in the files.
func (t *translator) walk(k known, value any, pattern string, path []string) {
	join := func(name string) string { return strings.TrimPrefix(pattern+"."+name, ".") }
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			below := join(name)
			if k.above[join("*")] || k.keys[join("*")].Path != "" {
				below = join("*")
			}
			t.key(k, v[name], below, append(slices.Clone(path), name))
		}
	case []any:
		for i, e := range v {
			t.walk(k, e, join("[]"), append(slices.Clone(path), strconv.Itoa(i)))
		}
	}
}

// key checks one key.
func (t *translator) key(k known, value any, pattern string, path []string) {
	key, ok := k.keys[pattern]
	switch {
	case k.above[pattern]:
		t.walk(k, value, pattern, path)
	case strings.HasPrefix(path[len(path)-1], "x-"):
	case !ok:
		t.refuse(path, "it is unknown here")
	case key.Support == Refused:
		t.refuse(path, key.Note)
	case key.Support == Ignored && key.Note != "" && pattern != "version" && !empty(value):
		t.note("%s: %s has no effect: %s", t.where.at(path...), strings.Join(path, "."), key.Note)
	}
}

// empty reports whether a value is a mapping or a list without elements.
func empty(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// refuse adds a setting that is not possible.
func (t *translator) refuse(path []string, why string) {
	text := fmt.Sprintf("%s: %s is not possible", t.where.at(path...), strings.Join(path, "."))
	if why != "" {
		text += ": " + why
	}
	if !slices.Contains(t.refused, text) {
		t.refused = append(t.refused, text)
	}
}

func (t *translator) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(t.notes, text) {
		t.notes = append(t.notes, text)
	}
}
