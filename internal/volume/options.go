package volume

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// The bounds of a volume's options. The kernel takes a page of them.
const (
	maxOptions = 4000 // bytes of o
	maxWords   = 64   // options in o
	maxDevice  = 4095 // bytes
)

// The options of a volume, as Docker's driver "local" has them.
const (
	typeKey   = "type"   // the filesystem, or none for a bind mount
	deviceKey = "device" // the source of mount(8)
	wordsKey  = "o"      // the options of the mount, separated by commas
)

// filesystem is a volume's options taken apart.
type filesystem struct {
	typ, device string
	words       []string
}

// parseOptions checks a volume's options; nil when there are none. InvalidArgument names the wrong
// option, and never contains a password.
func parseOptions(o map[string]string) (*filesystem, error) {
	if len(o) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if key != typeKey && key != deviceKey && key != wordsKey {
			return nil, bad("volume option %q is none of type, device, o", key)
		}
	}
	f := &filesystem{typ: o[typeKey], device: o[deviceKey]}
	switch {
	case f.typ == "" || f.device == "":
		return nil, bad("the volume options type and device go together")
	case !core.IsName(f.typ, "_.-", 32) || f.typ != strings.ToLower(f.typ):
		return nil, bad("volume option type %q is no filesystem's name", f.typ)
	case len(f.device) > maxDevice || hasControl(f.device):
		return nil, bad("volume option device is too long or has control characters in it")
	case len(o[wordsKey]) > maxOptions || hasControl(o[wordsKey]):
		return nil, bad("volume option o is longer than %d bytes or has control characters in it", maxOptions)
	}
	for w := range strings.SplitSeq(o[wordsKey], ",") {
		if w = strings.TrimSpace(w); w != "" && !onlyForPrograms(w) {
			f.words = append(f.words, w)
		}
	}
	if len(f.words) > maxWords {
		return nil, bad("volume option o has %d options, at most %d", len(f.words), maxWords)
	}
	return f, f.check()
}

// Check returns InvalidArgument if no volume can have these options.
func Check(o map[string]string) error {
	_, err := parseOptions(o)
	return err
}

func bad(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// onlyForPrograms reports whether an option is for mount(8) and systemd only, and unknown to the
// kernel.
func onlyForPrograms(word string) bool {
	return slices.Contains([]string{"_netdev", "auto", "noauto", "nofail", "user", "nouser", "users", "owner", "group"}, word)
}

// check refuses options that cannot be mounted, or that the mount would not honour.
func (f *filesystem) check() error {
	for _, w := range f.words {
		key, _, _ := strings.Cut(w, "=")
		switch {
		case key == "remount" || key == "move":
			return bad("volume option o: %s mounts nothing", key)
		case strings.HasPrefix(strings.ToLower(key), "x-"):
			return bad("volume option o: %s is no option of a filesystem", key)
		case f.cifs() && (key == "credentials" || key == "cred"):
			return bad("volume option o: %s is an option of the program mount.cifs: give username and password", key)
		}
	}
	switch {
	case f.bind():
		if !path.IsAbs(f.device) {
			return bad("volume option device %q of a bind mount is not an absolute path", f.device)
		}
	case f.typ == "none":
		return bad("volume option type none needs bind or rbind in o")
	case f.nfs():
		if host, dir, ok := f.export(); !ok || dir == "" || dir[0] != '/' || host == "" && f.value("addr") == "" {
			return bad("volume option device %q of type %s is not SERVER:/PATH", f.device, f.typ)
		}
	case f.cifs():
		if host := f.share(); host == "" || strings.ContainsRune(host, '@') {
			return bad("volume option device of type %s is not //SERVER/SHARE", f.typ)
		}
	}
	return nil
}

func (f *filesystem) nfs() bool  { return f.typ == "nfs" || f.typ == "nfs4" }
func (f *filesystem) cifs() bool { return f.typ == "cifs" || f.typ == "smb3" }

func (f *filesystem) bind() bool {
	return f.typ == "bind" || slices.Contains(f.words, "bind") || slices.Contains(f.words, "rbind")
}

// export takes the device of an NFS mount apart: SERVER:/PATH, where an IPv6 address is in
// brackets.
func (f *filesystem) export() (host, dir string, ok bool) {
	if rest, in := strings.CutPrefix(f.device, "["); in {
		if host, rest, ok = strings.Cut(rest, "]"); ok {
			dir, ok = strings.CutPrefix(rest, ":")
		}
		return host, dir, ok
	}
	return strings.Cut(f.device, ":")
}

// share is the server of a CIFS mount's device; "" when it names none.
func (f *filesystem) share() string {
	rest, ok := strings.CutPrefix(f.device, "//")
	host, name, more := strings.Cut(rest, "/")
	if !ok || !more || name == "" {
		return ""
	}
	return host
}

func (f *filesystem) value(key string) string {
	for _, w := range f.words {
		if k, v, ok := strings.Cut(w, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// mount returns the mount. The kernel resolves no names: those of an NFS or CIFS server become
// addresses. Unavailable when a name has none.
func (f *filesystem) mount(ctx context.Context) (core.Mount, error) {
	m := core.Mount{Type: f.typ, Source: f.device, Options: slices.Clone(f.words)}
	if f.typ == "none" || f.bind() {
		m.Type = "bind"
		if !slices.Contains(m.Options, "rbind") {
			m.Options = append([]string{"bind"}, m.Options...)
		}
		return m, nil
	}
	var host string
	switch {
	case f.nfs():
		host, _, _ = f.export()
	case f.cifs():
		host = f.share()
	default:
		return m, nil
	}
	for i, w := range m.Options {
		key, value, _ := strings.Cut(w, "=")
		if key != "addr" && (key != "ip" || !f.cifs()) {
			continue
		}
		addr, err := resolve(ctx, value)
		m.Options[i] = key + "=" + addr
		return m, err
	}
	addr, err := resolve(ctx, host)
	m.Options = append(m.Options, "addr="+addr)
	return m, err
}

// resolve returns a server's address, an IPv4 one where there is one, as Docker does.
func resolve(ctx context.Context, host string) (string, error) {
	if _, err := netip.ParseAddr(host); err == nil {
		return host, nil
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(all) == 0 {
		return "", fmt.Errorf("find the server %s: %v: %w", host, err, errdefs.ErrUnavailable) //nolint:errorlint // its class is ours
	}
	for i, a := range all {
		all[i] = a.Unmap()
	}
	if i := slices.IndexFunc(all, netip.Addr.Is4); i >= 0 {
		return all[i].String(), nil
	}
	return all[0].String(), nil
}

// hidden takes the place of a secret, as in the configuration that the agent shows.
const hidden = "<hidden>"

// Mask returns a volume's options with the values hidden that are secret.
func Mask(o map[string]string) map[string]string {
	if o == nil {
		return nil
	}
	shown := maps.Clone(o)
	if words, ok := o[wordsKey]; ok {
		shown[wordsKey] = maskWords(words)
	}
	return shown
}

// maskWords hides the values of password options. It hides everything from one up to the next
// option without a secret, because a password may contain a comma.
func maskWords(words string) string {
	var out []string
	inSecret := false
	for w := range strings.SplitSeq(words, ",") {
		key, _, has := strings.Cut(w, "=")
		switch {
		case has && secret(key):
			out, inSecret = append(out, key+"="+hidden), true
		case inSecret && !has:
		default:
			out, inSecret = append(out, w), false
		}
	}
	return strings.Join(out, ",")
}

func secret(key string) bool {
	key = strings.ToLower(strings.TrimSpace(key))
	return strings.Contains(key, "pass") || strings.Contains(key, "secret") || strings.Contains(key, "cred") || key == "key"
}
