package migrate

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// ContainerdConfig is where containerd looks for its configuration.
const ContainerdConfig = "/etc/containerd/config.toml"

// The IDs of containerd's plugins that the CRI consists of: version 2 of the configuration has one, later ones three, and
// version 1 used the last word.
var criPlugins = []string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"}

// newestContainerd is the newest known version of the configuration, of containerd 2.3.
const newestContainerd = 4

// Containerd reads containerd's configuration, with the files that it imports, of the versions 1 to 4.
func Containerd(root fs.FS, name string) (*Result, error) {
	c := table{}
	if err := containerdFiles(root, name, c); err != nil {
		return nil, err
	}
	r := &Result{}
	version, _ := c["version"].(int64)
	if version > newestContainerd {
		return nil, fmt.Errorf("%s has version %d, and longshore migrate knows versions up to %d: %w", name, version, newestContainerd, errdefs.ErrInvalidArgument)
	}
	r.note("", "the endpoint of kubelet and crictl becomes unix:///run/longshore/cri.sock; pull images again, and drain the node before")
	r.set("containerd's CRI uses CNI", "network.mode", "cni")
	plugins := take(c, "plugins")
	tls := take(plugins, "io.containerd.grpc.v1.cri", "x509_key_pair_streaming")
	for _, id := range criPlugins {
		p := take(plugins, id)
		name := fmt.Sprintf("plugins.%q", id)
		registries(r, name+".registry", take(p, "registry"))
		runtimes(r, name+".containerd.runtimes", take(p, "containerd", "runtimes"), p)
		streamServer(r, name, p, tls)
		apply(r, name, p, criRules)
	}
	if nri := take(plugins, "io.containerd.nri.v1.nri"); len(nri) > 0 {
		nriSocket(r, nri)
	}
	apply(r, "plugins", plugins, pluginRules)
	apply(r, "", c, containerdRules)
	return r, nil
}

// containerdFiles merges a file and those that it imports, as containerd does: the later ones win.
func containerdFiles(root fs.FS, name string, into table) error {
	seen := map[string]bool{}
	for pending := []string{path.Clean(name)}; len(pending) > 0; pending = pending[1:] {
		name := pending[0]
		if seen[name] {
			continue
		}
		if seen[name] = true; len(seen) > maxFiles {
			return fmt.Errorf("%s: more than %d files are imported: %w", name, maxFiles, errdefs.ErrInvalidArgument)
		}
		t, err := readTOML(root, name)
		if err != nil {
			return err
		}
		for _, other := range texts(t["imports"]) {
			if !path.IsAbs(other) {
				other = path.Join(path.Dir(name), other)
			}
			found := []string{path.Clean(other)}
			if strings.Contains(other, "*") {
				if found, err = fs.Glob(root, strings.TrimPrefix(path.Clean(other), "/")); err != nil {
					return fmt.Errorf("%s: imports %q: %w: %w", name, other, err, errdefs.ErrInvalidArgument)
				}
			}
			for _, f := range found {
				pending = append(pending, "/"+strings.TrimPrefix(f, "/"))
			}
		}
		delete(t, "imports")
		merge(into, t)
	}
	return nil
}

// maxFiles bounds the files of one configuration.
const maxFiles = 1000

// runtimes translates the handlers.
func runtimes(r *Result, name string, all, plugin table) {
	c, _ := plugin["containerd"].(table)
	def, _ := c["default_runtime_name"].(string)
	if def == "" {
		def = "runc"
	}
	without := devices{from: name + ".*.privileged_without_host_devices", def: def}
	for _, h := range slices.Sorted(maps.Keys(all)) {
		t, ok := all[h].(table)
		if !ok {
			continue
		}
		key := name + "." + h
		kind, _ := t["runtime_type"].(string)
		options := take(t, "options")
		program, _ := options["BinaryName"].(string)
		systemd, _ := options["SystemdCgroup"].(bool)
		if systemd && h == def {
			r.set(key+".options.SystemdCgroup", "face.cri.cgroup_driver", "systemd")
			r.set(key+".options.SystemdCgroup", "engine.cgroup_driver", "systemd")
		}
		delete(options, "SystemdCgroup")
		delete(options, "BinaryName")
		delete(t, "runtime_type")
		without.add(r, h, t)
		switch {
		case kind != "" && kind != "io.containerd.runc.v2" && kind != "io.containerd.runc.v1" && kind != "io.containerd.runtime.v1.linux":
			r.note(key, "runtime_type %s is a shim of containerd's, and there are none here: pods with this RuntimeClass need another node", kind)
			continue
		case h == def:
			r.note(key, "the default becomes the agent's own runtime (engine.runtime = \"auto\"); pods that name the handler %s get that program, if it is installed", h)
		}
		handler(r, key, h, program)
		if len(options) > 0 {
			apply(r, key+".options", options, shimRules)
		}
		apply(r, key, t, runtimeRules)
	}
}

// devices collects the handlers with the option privileged_without_host_devices.
type devices struct {
	from, def string
	handlers  []string
}

func (d *devices) add(r *Result, handler string, t table) {
	if without, _ := t["privileged_without_host_devices"].(bool); !without {
		return
	}
	if handler == d.def {
		d.handlers = append(d.handlers, "")
	}
	d.handlers = append(d.handlers, handler)
	r.set(d.from, "face.cri.privileged_without_host_devices", d.handlers)
}

// handler makes a RuntimeClass's handler: a runtime of that name if it has a program, otherwise runc's.
func handler(r *Result, key, h, program string) {
	switch {
	case path.IsAbs(program):
		r.setPath(key, []string{"runtimes", h, "path"}, program)
	case program != "" && program != h:
		r.setPath(key, []string{"face", "cri", "handlers", h}, program)
		r.setPath(key, []string{"runtimes", program, "path"}, "")
	case h != "runc" && h != "crun":
		r.setPath(key, []string{"face", "cri", "handlers", h}, "runc")
	}
}

// streamServer translates the address of the server for exec, attach and port-forward.
func streamServer(r *Result, name string, p, pair table) {
	host, _ := p["stream_server_address"].(string)
	port, _ := p["stream_server_port"].(string)
	secure, _ := p["enable_tls_streaming"].(bool)
	for _, k := range []string{"stream_server_address", "stream_server_port", "enable_tls_streaming"} {
		delete(p, k)
	}
	cert, _ := pair["tls_cert_file"].(string)
	key, _ := pair["tls_key_file"].(string)
	stream(r, name+".stream_server_address", streamConfig{host, port, secure, cert, key})
}

// streamConfig is where a runtime serves streams.
type streamConfig struct {
	host, port string
	tls        bool
	cert, key  string
}

func stream(r *Result, from string, c streamConfig) {
	if c.tls && c.cert != "" && c.key != "" {
		r.set(from, "face.cri.stream_cert", c.cert)
		r.set(from, "face.cri.stream_key", c.key)
	}
	if c.host == "" && c.port == "" {
		return
	}
	if c.host == "" {
		c.host = "127.0.0.1"
	}
	if c.port == "" {
		c.port = "0"
	}
	ip := net.ParseIP(c.host)
	loopback := c.host == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case loopback && c.port == "0": // the agent's default
	case !loopback && (c.cert == "" || !c.tls):
		r.note(from, "%s is no address of loopback, where streams need a certificate here: set face.cri.stream_address, stream_cert and stream_key, or leave it, because kubelet is on the same machine", c.host)
	default:
		r.set(from, "face.cri.stream_address", net.JoinHostPort(c.host, c.port))
	}
}

// nriSocket translates the settings of NRI.
func nriSocket(r *Result, nri table) {
	const key = `plugins."io.containerd.nri.v1.nri"`
	off, _ := nri["disable"].(bool)
	noConnections, _ := nri["disable_connections"].(bool)
	socket, _ := nri["socket_path"].(string)
	if socket == "" {
		socket = "/var/run/nri/nri.sock"
	}
	if off || noConnections {
		return
	}
	r.set(key+".socket_path", "face.cri.nri_socket", socket)
	r.note(key, "plugins connect to the same socket, and none are started by the agent: start those of plugin_path as services")
}

// The rules about containerd's keys, with the defaults of containerd 2.3 and, where they differ, of 1.7.
var criRules = []rule{
	{key: "cni.conf_dir", usual: "/etc/cni/net.d", to: "network.cni.conf_dir"},
	{key: "cni.bin_dir", usual: "/opt/cni/bin", do: func(r *Result, key string, v any) { r.set(key, "network.cni.bin_dirs", []any{v}) }},
	{key: "cni.bin_dirs", usual: []string{"/opt/cni/bin"}, to: "network.cni.bin_dirs"},
	{key: "cni.max_conf_num", usual: 1, note: "only the first configuration of the directory is used here: join several networks by a plugin such as Multus"},
	{key: "cni.conf_template", note: "there are no templates here: have the network plugin, or you, write the file into network.cni.conf_dir"},
	{key: "cni.ip_pref", usual: "ipv4", note: "a pod's first address is the one that the plugin returns first"},
	{key: "cni.setup_serially", to: "none"},
	{key: "cni.use_internal_loopback", to: "none"},
	{key: "cdi_spec_dirs", usual: []string{"/etc/cdi", "/var/run/cdi"}, to: "engine.cdi_dirs"},
	{key: "enable_cdi", usual: true, do: func(r *Result, key string, _ any) { r.set(key, "engine.cdi_dirs", []any{}) }},
	{key: "pinned_images.*", do: pinned},
	{key: "sandbox_image", to: "none"},
	{key: "max_concurrent_downloads", usual: 3, to: "images.max_concurrent_layers"},
	{key: "image_pull_progress_timeout", usual: "5m0s", to: "images.progress_timeout"},
	{key: "stream_idle_timeout", usual: "4h0m0s", to: "face.cri.stream_idle_timeout"},
	{key: "snapshotter", usual: "overlayfs", note: "images are always unpacked for overlayfs here; lazy pulling and other snapshotters have no counterpart"},
	{key: "containerd.snapshotter", usual: "overlayfs", note: "images are always unpacked for overlayfs here; lazy pulling and other snapshotters have no counterpart"},
	{key: "runtime_platforms.**", note: "images are unpacked for the node's own platform and for overlayfs"},
	{key: "image_decryption.key_model", usual: "node", to: "none"},
	{key: "max_container_log_line_size", usual: 16384, note: "the length of a part of a log line is 16384 here, as kubelet's own readers expect"},
	{key: "restrict_oom_score_adj", to: "none"},
	{key: "disable_cgroup", note: "a container always has cgroups here"},
	{key: "disable_proc_mount", note: "the CRI's procMount is always served here"},
	{key: "disable_apparmor", note: "where AppArmor is on, containers have the profile longshore-default: see docs/guide/profiles.md"},
	{key: "enable_selinux", usual: false, to: "face.cri.selinux"},
	{key: "selinux_category_range", usual: 1024, note: "pods have categories from c0 to c1023 here: see docs/guide/profiles.md"},
	{key: "unset_seccomp_profile", note: "set kubelet's seccompDefault instead, which does the same for pods without a profile"},
	{key: "ignore_image_defined_volumes", note: "the volumes that an image declares are made here, as by default there"},
	{key: "device_ownership_from_security_context", note: "devices keep the node's owners here"},
	{key: "enable_unprivileged_ports", usual: true, to: "none"},
	{key: "enable_unprivileged_icmp", usual: true, to: "none"},
	{key: "containerd.ignore_blockio_not_enabled_errors", to: "none"},
	{key: "containerd.ignore_rdt_not_enabled_errors", to: "none"},
	{key: "disable_tcp_service", usual: true, note: "the CRI is served on a unix socket only"},
	{key: "tolerate_missing_hugetlb_controller", usual: true, to: "none"},
	{key: "disable_hugetlb_controller", usual: true, to: "none"},
	{key: "containerd.runtimes", to: "none"},
	{key: "containerd.*", to: "none"}, // keys of containerd 1.x about its own work
	// Keys about containerd's own work.
	{key: "netns_mounts_under_state_dir", to: "none"},
	{key: "drain_exec_sync_io_timeout", to: "none"},
	{key: "ignore_deprecation_warnings", to: "none"},
	{key: "stats_collect_period", to: "none"},
	{key: "stats_retention_period", to: "none"},
	{key: "enable_criu", to: "none"},
	{key: "disable_snapshot_annotations", to: "none"},
	{key: "discard_unpacked_layers", to: "none"},
	{key: "image_pull_with_sync_fs", to: "none"},
	{key: "use_local_image_pull", to: "none"},
	{key: "concurrent_layer_fetch_buffer", to: "none"},
	{key: "max_concurrent_unpacks", to: "none"},
	{key: "systemd_cgroup", do: func(r *Result, key string, _ any) {
		r.set(key, "face.cri.cgroup_driver", "systemd")
		r.set(key, "engine.cgroup_driver", "systemd")
	}},
}

var runtimeRules = []rule{
	{key: "privileged_without_host_devices", to: "none"}, // see runtimes
	{key: "privileged_without_host_devices_all_devices_allowed", note: "a privileged container of this handler may use only the devices that it asks for"},
	{key: "pod_annotations", note: "annotations are not filtered: a container's specification has those of the CRI"},
	{key: "container_annotations", note: "annotations are not filtered: a container's specification has those of the CRI"},
	{key: "base_runtime_spec", note: "there is no file of defaults for specifications: change them by an NRI plugin"},
	{key: "cgroup_writable", note: "the cgroup tree of an unprivileged container is always read-only here"},
	{key: "cni_conf_dir", usual: "/etc/cni/net.d", note: "all handlers have one directory of networks here"},
	{key: "cni_max_conf_num", usual: 1, to: "none"},
	{key: "snapshotter", note: "images are always unpacked for overlayfs here"},
	{key: "sandboxer", usual: "podsandbox", note: "sandboxes are always the agent's own"},
	{key: "*", to: "none"}, // runtime_path, io_type, and others about shims
}

var shimRules = []rule{
	{key: "NoNewKeyring", note: "a container has a session keyring of its own here"},
	{key: "*", to: "none"}, // about the shim and its process
}

var containerdRules = []rule{
	{key: "version", to: "none"},
	{key: "root", usual: "/var/lib/containerd", note: "containerd's data were not in their usual place: set agent.root to a directory of the same disk"},
	{key: "debug.level", do: logLevel},
	{key: "debug.format", do: func(r *Result, key string, v any) {
		if v == "json" || v == "text" {
			r.set(key, "agent.log_format", v)
		}
	}},
	{key: "grpc.max_recv_message_size", usual: 16777216, do: messageBytes},
	{key: "grpc.tcp_address", note: "the CRI is served on a unix socket only"},
	{key: "metrics.address", do: metricsAddress},
	{key: "disabled_plugins", note: "a face of the agent is switched off by face.NAME.enabled; other parts cannot be"},
	{key: "proxy_plugins.**", note: "there are no plugins of this kind here"},
	{key: "cgroup.path", note: "the agent's cgroup is its unit's"},
	{key: "*", to: "none"},
	{key: "*.**", to: "none"}, // about the other process itself
}

var pluginRules = []rule{
	{key: "io.containerd.image-verifier.v1.bindir.bin_dir", usual: "/opt/containerd/image-verifier/bin", to: "images.policy.verifiers"},
	{key: "io.containerd.image-verifier.v1.bindir.max_verifiers", usual: 10, to: "images.policy.max_verifiers"},
	{key: "io.containerd.image-verifier.v1.bindir.per_verifier_timeout", usual: "10s", to: "images.policy.verifier_timeout"},
	{key: "io.containerd.transfer.v1.local.max_concurrent_downloads", usual: 3, to: "images.max_concurrent_layers"},
	{key: "io.containerd.transfer.v1.local.config_path", do: func(r *Result, key string, v any) { hostDirs(r, key, v) }},
	{key: "io.containerd.server.v1.metrics.address", do: metricsAddress},
	{key: "io.containerd.server.v1.grpc.max_recv_message_size", usual: 16777216, do: messageBytes},
	{key: "io.containerd.server.v1.grpc-tcp.**", note: "the CRI is served on a unix socket only"},
	{key: "io.containerd.service.v1.tasks-service.blockio_config_file", note: "classes of block I/O have no counterpart: pods that name one are refused"},
	{key: "io.containerd.service.v1.tasks-service.rdt_config_file", note: "classes of RDT have no counterpart: pods that name one are refused"},
	{key: "io.containerd.tracing.processor.v1.otlp.endpoint", note: "there are no traces yet: see docs/guide/metrics.md"},
	{key: "*.**", to: "none"}, // plugins that the CRI does not need
}

func pinned(r *Result, key string, v any) {
	name, _ := v.(string)
	if name == "" || strings.HasSuffix(key, "."+"sandbox") {
		return // there are no pause containers
	}
	list := []any{}
	for _, s := range r.Settings {
		if strings.Join(s.Path, ".") == "face.cri.pinned_images" {
			list, _ = s.Value.([]any)
		}
	}
	r.set(key, "face.cri.pinned_images", append(slices.Clone(list), name))
}

func logLevel(r *Result, key string, v any) {
	level, known := map[string]string{"trace": "debug", "debug": "debug", "warn": "warn", "warning": "warn", "error": "error", "fatal": "error", "panic": "error"}[fmt.Sprint(v)]
	if known {
		r.set(key, "agent.log_level", level)
	}
}

// messageBytes keeps a limit that is higher than the agent's own.
func messageBytes(r *Result, key string, v any) {
	if n, _ := v.(int64); n > 32<<20 {
		r.set(key, "face.cri.max_message_bytes", n)
	}
}

func metricsAddress(r *Result, key string, v any) {
	if v != "" {
		r.note(key, "metrics have other names here, and a TCP listener needs a certificate and a token: see docs/guide/metrics.md; that there was %v", v)
	}
}
