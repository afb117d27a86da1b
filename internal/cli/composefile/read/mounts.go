package read

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/composefile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/solo/translate"
)

// networks puts the service on its networks. The first has the default route and the interface eth0.
func (t *serviceTranslator) networks() {
	switch t.s.NetworkMode {
	case "":
	case "host", "none":
		t.r.Network = t.s.NetworkMode
		return
	case "bridge", "default":
		t.r.Network = "default"
		return
	default:
		t.r.Network = t.joined(t.s.NetworkMode)
		switch {
		case t.r.GetNetwork() == "":
			t.refuse("it is none of bridge, host, none, service:NAME and container:NAME", "network_mode")
		case len(t.s.Ports) > 0:
			t.refuse("ports are published by the service whose network it has: write them there", "ports")
		case t.s.Hostname+t.s.DomainName != "":
			t.refuse("the host name is that of the service whose network it has: write it there", "hostname")
		case len(t.s.ExtraHosts) > 0:
			t.refuse("/etc/hosts is that of the service whose network it has: write the lines there", "extra_hosts")
		}
		return
	}
	keys := t.s.NetworksByPriority()
	slices.SortStableFunc(keys, func(a, b string) int { return gateway(t.s.Networks[b]) - gateway(t.s.Networks[a]) })
	for i, key := range keys {
		n := t.attachment(key)
		if i > 0 {
			t.r.FurtherNetworks = append(t.r.FurtherNetworks, n)
			continue
		}
		t.r.Network, t.r.NetworkAliases = n.GetNetwork(), n.GetAliases()
		if n.GetMac() != "" {
			t.r.Mac = n.GetMac()
		}
		if c := t.s.Networks[key]; c != nil && !predefined(n.GetNetwork()) {
			t.r.Ip, t.r.Ip6 = c.Ipv4Address, c.Ipv6Address
		}
		if n.GetInterface() != "" && n.GetInterface() != "eth0" {
			t.refuse("the interface of the first network is eth0: leave it out, or give another network a higher priority", "networks", key, "interface_name")
		}
	}
}

// joined returns container:NAME for service:NAME or container:NAME, and "" for other texts.
func (t *serviceTranslator) joined(mode string) string {
	if service, ok := strings.CutPrefix(mode, types.ServicePrefix); ok {
		if _, ok := t.p.Services[service]; !ok {
			return ""
		}
		return translate.JoinedPrefix + t.firstContainer(service)
	}
	if name, ok := translate.JoinedContainer(mode); !ok || name == "" {
		return ""
	}
	return mode
}

// firstContainer returns the name of a service's first container.
func (t *serviceTranslator) firstContainer(service string) string {
	if name := t.p.Services[service].ContainerName; name != "" {
		return name
	}
	return composefile.ContainerName(t.p.Name, service, 1)
}

func gateway(n *types.ServiceNetworkConfig) int {
	if n == nil {
		return 0
	}
	return n.GatewayPriority
}

// attachment returns the place of the service on one network.
func (t *serviceTranslator) attachment(key string) *longshorev1.NetworkAttachment {
	n, own := t.s.Networks[key], t.p.Networks[key]
	a := &longshorev1.NetworkAttachment{Network: own.Name}
	if predefined(a.GetNetwork()) {
		return a // without names
	}
	if n.ServiceNameAliasEnabled() {
		a.Aliases = append(a.Aliases, t.s.Name)
	}
	if n == nil {
		return a
	}
	for _, alias := range n.Aliases {
		if !slices.Contains(a.GetAliases(), alias) {
			a.Aliases = append(a.Aliases, alias)
		}
	}
	for _, ip := range []string{n.Ipv4Address, n.Ipv6Address} {
		if ip != "" {
			a.Addresses = append(a.Addresses, ip)
		}
	}
	a.Mac, a.Interface = n.MacAddress, n.InterfaceName
	return a
}

// predefined reports whether a network exists on each node.
func predefined(name string) bool {
	return slices.Contains([]string{"bridge", "default", "host", "none"}, name)
}

func (t *serviceTranslator) ports() {
	for i, p := range t.s.Ports {
		q := &longshorev1.Port{Protocol: p.Protocol, HostIp: p.HostIP, Container: p.Target}
		if q.GetProtocol() == "" {
			q.Protocol = "tcp"
		}
		if p.Published != "" {
			n, err := strconv.ParseUint(p.Published, 10, 16)
			if err != nil {
				t.refuse(fmt.Sprintf("the published port %q is not one port: write one, a range with as many ports as the container's, or none to have one chosen", p.Published), "ports", strconv.Itoa(i), "published")
			}
			q.Host = uint32(n)
		}
		if q.GetHost() != 0 && t.out.Scale > 1 {
			t.refuse(fmt.Sprintf("%d containers cannot share the port %d of the host: leave the published port out", t.out.Scale, q.GetHost()), "ports", strconv.Itoa(i))
		}
		t.r.Ports = append(t.r.Ports, q)
	}
}

// mounts adds volumes, directories of the host and file systems in memory.
func (t *serviceTranslator) mounts() {
	for i, v := range t.s.Volumes {
		m := &longshorev1.Mount{Source: v.Source, Target: v.Target, ReadOnly: v.ReadOnly}
		switch v.Type {
		case types.VolumeTypeBind:
			if v.Bind != nil {
				m.Propagation, m.Relabel = v.Bind.Propagation, v.Bind.SELinux
			}
			t.bind(m.GetSource(), v.Bind != nil && bool(v.Bind.CreateHostPath), strconv.Itoa(i))
			t.r.Mounts = append(t.r.Mounts, m)
		case types.VolumeTypeVolume:
			if v.Volume != nil {
				m.NoCopy, m.SubPath = v.Volume.NoCopy, v.Volume.Subpath
			}
			if m.Anonymous = v.Source == ""; !m.GetAnonymous() {
				m.Source = t.p.Volumes[v.Source].Name
			}
			t.r.Mounts = append(t.r.Mounts, m)
		case types.VolumeTypeTmpfs:
			tmpfs := &longshorev1.Tmpfs{Target: v.Target}
			if v.Tmpfs != nil && v.Tmpfs.Size > 0 {
				tmpfs.Options = append(tmpfs.Options, fmt.Sprintf("size=%d", v.Tmpfs.Size))
			}
			if v.Tmpfs != nil && v.Tmpfs.Mode > 0 {
				tmpfs.Options = append(tmpfs.Options, fmt.Sprintf("mode=%o", v.Tmpfs.Mode))
			}
			if v.ReadOnly {
				tmpfs.Options = append(tmpfs.Options, "ro")
			}
			t.r.Tmpfs = append(t.r.Tmpfs, tmpfs)
		case types.VolumeTypeImage:
			img := &longshorev1.ImageMount{Image: v.Source, Target: v.Target}
			if v.Image != nil {
				img.SubPath = v.Image.SubPath
			}
			t.r.Images = append(t.r.Images, img)
		default:
			t.refuse(fmt.Sprintf("the type %q is none of bind, volume, tmpfs and image", v.Type), "volumes", strconv.Itoa(i), "type")
		}
	}
	for _, text := range t.s.Tmpfs {
		target, options, _ := strings.Cut(text, ":")
		tmpfs := &longshorev1.Tmpfs{Target: target}
		if options != "" {
			tmpfs.Options = strings.Split(options, ",")
		}
		t.r.Tmpfs = append(t.r.Tmpfs, tmpfs)
	}
}

// bind checks the source of a mount. A missing directory is made later if create is set.
func (t *serviceTranslator) bind(source string, create bool, index string) {
	_, err := os.Stat(source)
	switch {
	case !errors.Is(err, os.ErrNotExist):
		return
	case strings.HasSuffix(source, ".sock"):
		t.refuse("there is no socket "+source, "volumes", index) // a directory in its place would be in the way of its server
	case create:
		t.out.MakeDirs = append(t.out.MakeDirs, source)
	default:
		t.refuse("there is no file or directory "+source, "volumes", index)
	}
}

// files adds secrets and configs.
func (t *serviceTranslator) files() {
	for i, ref := range t.s.Secrets {
		f := fileOf{kind: "secrets", index: strconv.Itoa(i), ref: types.FileReferenceConfig(ref), from: types.FileObjectConfig(t.p.Secrets[ref.Source])}
		if f.target = ref.Target; f.target == "" {
			f.target = ref.Source
		}
		if !path.IsAbs(f.target) {
			f.target = path.Join("/run/secrets", f.target)
		}
		t.file(f)
	}
	for i, ref := range t.s.Configs {
		f := fileOf{kind: "configs", index: strconv.Itoa(i), ref: types.FileReferenceConfig(ref), from: types.FileObjectConfig(t.p.Configs[ref.Source]), target: ref.Target}
		if f.target == "" {
			f.target = ref.Source
		}
		f.target = path.Join("/", f.target)
		t.file(f)
	}
}

// fileOf is a secret or config of a service.
type fileOf struct {
	kind, index string
	ref         types.FileReferenceConfig
	from        types.FileObjectConfig
	target      string // path in the container
}

// file adds one secret or config: a file is mounted; its copy has another owner or mode; everything else is written.
func (t *serviceTranslator) file(f fileOf) {
	own := f.ref.UID != "" || f.ref.GID != "" || f.ref.Mode != nil
	out := composefile.File{Path: f.target, Mode: 0o444}
	switch {
	case bool(f.from.External):
		return // refused already
	case f.from.File != "" && !own:
		if _, err := os.Stat(f.from.File); err != nil {
			t.translator.refuse([]string{f.kind, f.ref.Source, "file"}, fmt.Sprintf("read the file: %v", err))
			return
		}
		t.r.Mounts = append(t.r.Mounts, &longshorev1.Mount{Source: f.from.File, Target: f.target, ReadOnly: true})
		return
	case f.from.File != "":
		data, err := contentOf(f.from.File)
		if err != nil {
			t.translator.refuse([]string{f.kind, f.ref.Source, "file"}, fmt.Sprintf("read the file: %v", err))
			return
		}
		out.Content = data
	case f.from.Environment != "":
		value, ok := t.env[f.from.Environment]
		if !ok {
			t.translator.refuse([]string{f.kind, f.ref.Source, "environment"}, fmt.Sprintf("the variable %s is not set", f.from.Environment))
			return
		}
		out.Content = []byte(value)
	default:
		out.Content = []byte(f.from.Content)
	}
	if t.s.ReadOnly {
		t.refuse("the service's root is read-only, and this file is written to it: write file in the declaration, without uid, gid and mode", f.kind, f.index)
	}
	for _, m := range t.r.GetTmpfs() {
		if strings.HasPrefix(f.target, strings.TrimSuffix(m.GetTarget(), "/")+"/") {
			t.refuse("a tmpfs at "+m.GetTarget()+" would hide the file: write file in the declaration, without uid, gid and mode", f.kind, f.index)
		}
	}
	if f.ref.Mode != nil {
		out.Mode = int64(*f.ref.Mode) & 0o7777
	}
	for _, id := range []struct {
		key, text string
		to        *int
	}{{"uid", f.ref.UID, &out.UID}, {"gid", f.ref.GID, &out.GID}} {
		n, err := strconv.ParseUint(id.text, 10, 31)
		if id.text != "" && err != nil {
			t.refuse("it is a number", f.kind, f.index, id.key)
		}
		*id.to = int(n)
	}
	t.out.Files = append(t.out.Files, out)
}

// contentOf reads a file that is copied. A device or a pipe may have no end.
func contentOf(path string) ([]byte, error) {
	if err := sized(path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// sized refuses a file that is too large to be read, and one without a size.
func sized(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a plain file", path)
	case info.Size() > composefile.MaxFile:
		return fmt.Errorf("%s has more than %d bytes", path, composefile.MaxFile)
	}
	return nil
}

// verify makes the checks of the agent. A request that fails them is refused before anything is created.
func (t *serviceTranslator) verify() {
	if len(t.refused) > 0 {
		return // it may be incomplete
	}
	r, ok := proto.Clone(t.r).(*longshorev1.CreateRequest)
	if !ok {
		return
	}
	r.Name = composefile.ContainerName(t.p.Name, t.s.Name, 1)
	if t.s.ContainerName != "" {
		r.Name = t.s.ContainerName
	}
	r.Mounts = slices.DeleteFunc(r.GetMounts(), func(m *longshorev1.Mount) bool { return slices.Contains(t.out.MakeDirs, m.GetSource()) })
	_, err := translate.Sandbox(r)
	err = errors.Join(err, translate.Check(r))
	if err == nil {
		r.Images = nil // the agent finds them
		_, err = translate.Container(r, core.Key(r.GetName()), core.Image{}, nil)
	}
	if err != nil {
		t.refuse(err.Error())
	}
}
