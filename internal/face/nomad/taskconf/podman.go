package taskconf

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/face/nomad/schema"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// podmanFields are keys of podman's driver alone.
func podmanFields() []schema.Field {
	return slices.Concat(
		keys(schema.String, "apparmor_profile", "arch", "os", "variant", "init_path", "static_mac", "memory_reservation", "memory_swap", "socket"),
		keys(schema.Strings, "selinux_opts", "static_ips"),
		keys(schema.Number, "memory_swappiness"),
	)
}

// podman reads the keys of podman's driver that docker's does not have.
func (t *Task) podman(v schema.Values) error {
	if p := v.String("apparmor_profile"); p != "" {
		if t.Security.AppArmor != "" && t.Security.AppArmor != p {
			return invalid.Errorf("config.apparmor_profile %q is not the profile %q of config.security_opt: they are one key", p, t.Security.AppArmor)
		}
		t.Security.AppArmor = p
	}
	t.Security.SELinux = append(t.Security.SELinux, v.Strings("selinux_opts")...)
	if _, err := ocispec.ParseSELinux(t.Security.SELinux); err != nil {
		return invalid.Errorf("config.selinux_opts: %v", err)
	}
	if v.String("init_path") != "" {
		t.warn("config.init_path has no effect: the agent has an init of its own")
	}
	if s := v.String("socket"); s != "" && s != "default" {
		t.warn("config.socket %q has no effect: the agent runs all tasks", s)
	}
	if err := platform(v); err != nil {
		return err
	}
	if tls := v.Block("auth"); tls.Has("tls_verify") && !tls.Bool("tls_verify") {
		return invalid.Errorf("config.auth.tls_verify = false is not for this driver: set skip_verify for the registry in the agent's images.registry_config")
	}
	if v.Has("static_mac") {
		return invalid.Errorf("config.static_mac is not for this driver: %s", insteadOfMAC)
	}
	for _, text := range v.Strings("static_ips") {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return invalid.Errorf("config.static_ips: %q is no address", text)
		}
		t.Addrs = append(t.Addrs, a)
	}
	return t.podmanMemory(v)
}

// architectures are other names of Go's.
var architectures = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}

// platform refuses other platforms than the node's, because the node cannot run their programs.
func platform(v schema.Values) error {
	arch := v.String("arch")
	if a, ok := architectures[arch]; ok {
		arch = a
	}
	switch {
	case !slices.Contains([]string{"", runtime.GOARCH}, arch):
		return invalid.Errorf("config.arch %q is not the node's, %s: use a constraint on the attribute cpu.arch", v.String("arch"), runtime.GOARCH)
	case !slices.Contains([]string{"", "linux"}, v.String("os")):
		return invalid.Errorf("config.os %q is not linux: use a constraint on the attribute kernel.name", v.String("os"))
	case v.String("variant") != "":
		return invalid.Errorf("config.variant is not for this driver: the node's variant of an image is used; name an image that has only the other one")
	}
	return nil
}

// podmanMemory reads limits that Nomad's resources do not have. Sizes have units, such as 100m.
func (t *Task) podmanMemory(v schema.Values) error {
	for key, to := range map[string]*int64{"memory_reservation": &t.ReservedMemory, "memory_swap": &t.Swap} {
		text := v.String(key)
		switch {
		case text == "":
		case text == "-1" && key == "memory_swap":
			*to = -1
		default:
			n, err := ocispec.Bytes(text)
			if err != nil || n < 1 {
				return invalid.Errorf("config.%s %q is no size such as 100m", key, text)
			}
			*to = n
		}
	}
	if v.Has("memory_swappiness") {
		n, err := v.Int("memory_swappiness", 0, 100)
		if err != nil {
			return err
		}
		t.Swappiness = new(uint64(n))
	}
	return nil
}

// tmpfsOf reads TARGET[:OPTION,…], as podman has it.
func tmpfsOf(text string) (Mount, error) {
	target, options, _ := strings.Cut(text, ":")
	m := Mount{Type: "tmpfs", Target: target}
	if options == "" {
		return m, nil
	}
	for o := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(o, "=")
		var err error
		switch key {
		case "size":
			m.Size, err = ocispec.Bytes(value)
		case "mode":
			m.Mode, err = strconv.ParseInt(value, 8, 64)
			if m.Mode < 0 || m.Mode > 0o7777 {
				err = fmt.Errorf("%s is no mode", value)
			}
		case "nr_inodes", "uid", "gid":
			_, err = strconv.ParseUint(value, 10, 32)
			m.Flags = append(m.Flags, o)
		case "rw", "rprivate", "private", "notmpcopyup":
		case "tmpcopyup":
			err = fmt.Errorf("nothing of the image is copied into a tmpfs")
		case "ro":
			m.ReadOnly = true
		default:
			err = m.flag(o)
		}
		if err != nil {
			return m, invalid.Errorf("config.tmpfs %q: option %q: %v", text, o, err)
		}
	}
	return m, nil
}

// flag adds an option that file systems have.
func (m *Mount) flag(option string) error {
	switch option {
	case "noexec", "exec", "nosuid", "suid", "nodev", "dev", "noatime", "nodiratime", "relatime":
		m.Flags = append(m.Flags, option)
		return nil
	case "U":
		return fmt.Errorf("no owners are changed: use userns_mode = \"auto\", which shows them as they are")
	case "O":
		return fmt.Errorf("there are no overlays of directories: use a mount of the type image, or copy the directory")
	case "idmap":
		return fmt.Errorf("owners are mapped for all mounts of a task with userns_mode = \"auto\"")
	}
	return fmt.Errorf("it is unknown")
}
