package migrate

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// CRIOConfig is where CRI-O looks for its configuration; the directory with .d behind its name is read too.
const CRIOConfig = "/etc/crio/crio.conf"

// registriesConf is containers/image's configuration, which CRI-O uses.
const registriesConf = "/etc/containers/registries.conf"

// CRIO reads CRI-O's configuration, its directory of more files, and registries.conf.
func CRIO(root fs.FS, name string) (*Result, error) {
	c := table{}
	found, err := mergeFiles(root, name, ".conf", c)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("read %s: there is neither this file nor one in %s.d; name the configuration with --config: %w", name, name, errdefs.ErrNotFound)
	}
	r := &Result{}
	r.note("", "the endpoint of kubelet and crictl becomes unix:///run/longshore/cri.sock; pull images again, and drain the node before")
	r.set("CRI-O uses CNI", "network.mode", "cni")
	crio := take(c, "crio")
	api := take(crio, "api")
	streamOf(r, api)
	apply(r, "crio.api", api, apiRules)
	rt := take(crio, "runtime")
	if m, ok := rt["cgroup_manager"]; !ok || m == "systemd" { // its default
		r.set("crio.runtime.cgroup_manager", "face.cri.cgroup_driver", "systemd")
		r.set("crio.runtime.cgroup_manager", "engine.cgroup_driver", "systemd")
	}
	crioRuntimes(r, take(rt, "runtimes"), rt)
	apply(r, "crio.runtime", rt, crioRules)
	nri := take(crio, "nri")
	if on, ok := nri["enable_nri"].(bool); !ok || on {
		socket, _ := nri["nri_listen"].(string)
		if socket == "" {
			socket = "/var/run/nri/nri.sock"
		}
		r.set("crio.nri.nri_listen", "face.cri.nri_socket", socket)
		r.note("crio.nri", "plugins connect to the same socket, and none are started by the agent: start those of nri_plugin_dir as services")
	}
	metricsOf(r, take(crio, "metrics"))
	apply(r, "crio", crio, otherRules)
	for _, k := range slices.Sorted(maps.Keys(c)) {
		r.note(k, "not known to this version of longshore: check whether it matters")
	}
	registries := table{}
	if found, err = mergeFiles(root, registriesConf, ".conf", registries); err != nil {
		return nil, err
	}
	if found {
		containersRegistries(r, registriesConf, registries)
	}
	return r, nil
}

// mergeFiles merges the file name and those of the directory name.d, in lexical order; the later ones win. The file need not
// exist.
func mergeFiles(root fs.FS, name, suffix string, into table) (found bool, err error) {
	t, err := readTOML(root, name)
	switch {
	case err == nil:
		merge(into, t)
		found = true
	case !errors.Is(err, errdefs.ErrNotFound):
		return false, err
	}
	dir := strings.TrimPrefix(path.Clean(name), "/") + ".d"
	entries, err := fs.ReadDir(root, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read /%s: %w", dir, err)
	}
	if len(entries) > maxFiles {
		return false, fmt.Errorf("read /%s: it has more than %d files: %w", dir, maxFiles, errdefs.ErrInvalidArgument)
	}
	for _, e := range entries { // sorted by name
		if e.IsDir() || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		if t, err = readTOML(root, path.Join("/", dir, e.Name())); err != nil {
			return false, err
		}
		merge(into, t)
		found = true
	}
	return found, nil
}

func streamOf(r *Result, api table) {
	var c streamConfig
	c.host, _ = api["stream_address"].(string)
	c.port, _ = api["stream_port"].(string)
	c.tls, _ = api["stream_enable_tls"].(bool)
	c.cert, _ = api["stream_tls_cert"].(string)
	c.key, _ = api["stream_tls_key"].(string)
	for _, k := range []string{"stream_address", "stream_port", "stream_enable_tls", "stream_tls_cert", "stream_tls_key"} {
		delete(api, k)
	}
	stream(r, "crio.api.stream_address", c)
}

func crioRuntimes(r *Result, all, rt table) {
	def, _ := rt["default_runtime"].(string)
	if def == "" {
		def = "crun"
	}
	without := devices{from: "crio.runtime.runtimes.*.privileged_without_host_devices", def: def}
	for _, h := range slices.Sorted(maps.Keys(all)) {
		t, ok := all[h].(table)
		if !ok {
			continue
		}
		key := "crio.runtime.runtimes." + h
		if kind, _ := t["runtime_type"].(string); kind != "" && kind != "oci" {
			r.note(key, "runtime_type %s is a shim, and there are none here: pods with this RuntimeClass need another node", kind)
			continue
		}
		without.add(r, h, t)
		if h == def {
			r.note(key, "the default becomes the agent's own runtime (engine.runtime = \"auto\"); pods that name the handler %s get that program, if it is installed", h)
		}
		program, _ := t["runtime_path"].(string)
		delete(t, "runtime_path")
		handler(r, key, h, program)
		apply(r, key, t, crioRuntimeRules)
	}
}

func metricsOf(r *Result, m table) {
	if on, _ := m["enable_metrics"].(bool); !on {
		return
	}
	host, _ := m["metrics_host"].(string)
	if host == "" {
		host = "127.0.0.1"
	}
	port, ok := m["metrics_port"].(int64)
	if !ok {
		port = 9090
	}
	metricsAddress(r, "crio.metrics", net.JoinHostPort(host, strconv.FormatInt(port, 10)))
}

// The rules about CRI-O's keys, with the defaults of CRI-O 1.36.
var apiRules = []rule{
	{key: "stream_idle_timeout", to: "face.cri.stream_idle_timeout"},
	{key: "stream_tls_ca", note: "a stream's client is identified by the random token of its URL"},
	{key: "grpc_max_recv_msg_size", usual: 83886080, do: messageBytes},
	{key: "*", to: "none"}, // the socket, and the form of TLS
}

var crioRuntimeRules = []rule{
	{key: "privileged_without_host_devices", to: "none"}, // see crioRuntimes
	{key: "allowed_annotations", note: "annotations of CRI-O's own have no effect here"},
	{key: "default_annotations", note: "annotations of CRI-O's own have no effect here"},
	{key: "default_annotations.**", note: "annotations of CRI-O's own have no effect here"},
	{key: "seccomp_profile", note: "the default profile cannot be replaced: give pods a Localhost profile"},
	{key: "exec_cpu_affinity", note: "a process of an exec may use all CPUs of its container"},
	{key: "container_min_memory", to: "none"},
	{key: "*", to: "none"},
	{key: "*.**", to: "none"}, // about conmon and the program's own files
}

var crioRules = []rule{
	{key: "log_level", usual: "info", do: logLevel},
	{key: "log_size_max", usual: -1, do: func(r *Result, key string, v any) {
		if n, _ := v.(int64); n > 0 {
			r.set(key, "face.cri.log_max_bytes", n)
		}
	}},
	{key: "cdi_spec_dirs", to: "engine.cdi_dirs"},
	{key: "cgroup_manager", to: "none"}, // see CRIO
	{key: "absent_mount_sources_to_reject", do: func(r *Result, key string, _ any) {
		r.set(key, "face.cri.create_mount_sources", false)
		r.note(key, "no missing source is created then, whatever its path")
	}},
	{key: "pids_limit", usual: -1, note: "limits of a pod's processes are kubelet's podPidsLimit"},
	{key: "default_ulimits", to: "engine.ulimits"},
	{key: "default_env", note: "an NRI plugin can add variables to each container"},
	{key: "default_sysctls", note: "name kernel parameters in the pod's securityContext; ports below 1024 and ping need none here"},
	{key: "default_capabilities", note: "an unprivileged container gets the capabilities of containerd's and docker's default; add or drop them in the pod's securityContext"},
	{key: "add_inheritable_capabilities", note: "no capability is inheritable here"},
	{key: "additional_devices", note: "use CDI (engine.cdi_dirs), or an NRI plugin"},
	{key: "allowed_devices", note: "devices are not named by annotations here: use CDI or a device plugin"},
	{key: "hooks_dir", note: "there are no hook files: an NRI plugin can add hooks to each container"},
	{key: "default_mounts_file", note: "an NRI plugin can add mounts to each container"},
	{key: "seccomp_profile", note: "the default profile cannot be replaced: give pods a Localhost profile"},
	{key: "privileged_seccomp_profile", note: "a privileged container has no profile unless its pod names one"},
	{key: "apparmor_profile", usual: "crio-default", note: "the default profile here is longshore-default and cannot be replaced: give pods a Localhost profile"},
	{key: "selinux", usual: false, to: "face.cri.selinux"},
	{key: "hostnetwork_disable_selinux", usual: true, to: "none"},
	{key: "read_only", note: "containers are read-only if their pod says so (readOnlyRootFilesystem)"},
	{key: "uid_mappings", note: "ids of user namespaces are chosen by kubelet (hostUsers: false)"},
	{key: "gid_mappings", note: "ids of user namespaces are chosen by kubelet (hostUsers: false)"},
	{key: "disable_hostport_mapping", note: "host ports of pods are opened by the builtin network, or by the CNI plugin portmap"},
	{key: "timezone", note: "set TZ in the pod"},
	{key: "shared_cpuset", note: "there are no such annotations here"},
	{key: "infra_ctr_cpuset", to: "none"}, // there are no pause containers
	{key: "blockio_config_file", note: "classes of block I/O have no counterpart: pods that name one are refused"},
	{key: "rdt_config_file", note: "classes of RDT have no counterpart: pods that name one are refused"},
	{key: "device_ownership_from_security_context", note: "devices keep the node's owners here"},
	{key: "log_to_journald", note: "containers' logs are files only"},
	{key: "workloads.**", note: "workloads have no counterpart: use kubelet's CPU manager"},
	{key: "default_runtime", usual: "crun", note: "the default becomes the agent's own runtime; engine.runtime names another"},
	{key: "minimum_mappable_uid", usual: -1, to: "none"},
	{key: "minimum_mappable_gid", usual: -1, to: "none"},
	{key: "enable_pod_events", to: "none"}, // GetContainerEvents is always served
	{key: "*", to: "none"},
	{key: "*.**", to: "none"}, // paths and programs of CRI-O's own work
}

var otherRules = []rule{
	{key: "network.network_dir", usual: "/etc/cni/net.d", to: "network.cni.conf_dir"},
	{key: "network.plugin_dirs", usual: []string{"/opt/cni/bin"}, to: "network.cni.bin_dirs"},
	{key: "network.plugin_dir", do: func(r *Result, key string, v any) { r.set(key, "network.cni.bin_dirs", []any{v}) }},
	{key: "network.cni_default_network", note: "the first configuration of the directory is used here"},
	{key: "network.*", to: "none"},
	{key: "image.pinned_images", to: "face.cri.pinned_images"},
	{key: "image.pull_progress_timeout", usual: "0s", to: "images.progress_timeout"},
	{key: "image.global_auth_file", to: "images.docker_config"},
	{key: "image.insecure_registries", note: "write skip_verify = true, or an http:// host, into the hosts.toml of each"},
	{key: "image.signature_policy", note: "signatures are checked by images.policy: see docs/guide/image-policy.md"},
	{key: "image.signature_policy_dir", usual: "/etc/crio/policies", note: "signatures are checked by images.policy: see docs/guide/image-policy.md"},
	{key: "image.image_volumes", usual: "mkdir", note: "the volumes that an image declares are made as volumes here"},
	{key: "image.short_name_mode", usual: "enforcing", to: "none"},
	{key: "image.*", to: "none"}, // the pause image, and transports
	{key: "tracing.enable_tracing", note: "there are no traces yet: see docs/guide/metrics.md"},
	{key: "tracing.*", to: "none"},
	{key: "storage_driver", usual: "overlay", note: "images are always unpacked for overlayfs here"},
	{key: "root", usual: "/var/lib/containers/storage", note: "CRI-O's data were not in their usual place: set agent.root to a directory of the same disk"},
	{key: "stats.*", to: "none"},
	{key: "checkpoint_restore.*", to: "none"},
	{key: "*", to: "none"}, // directories and files of CRI-O's own work
}
