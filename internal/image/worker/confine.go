package worker

import (
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/userns"
	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/confine"
)

// keptCaps returns the capabilities that unpacking a layer as root needs: any owner and mode,
// device nodes, file capabilities, and trusted.* xattrs (CAP_SYS_ADMIN; the seccomp filter closes
// its other uses).
func keptCaps() []uint {
	return []uint{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD, unix.CAP_SETFCAP, unix.CAP_SYS_ADMIN}
}

// Confine permanently takes everything from this process but the image directory root, reading
// the registry configs in hostDirs, and the network. It returns which of these the kernel
// enforces.
func Confine(root string, hostDirs []string) (string, error) {
	userns.RunningInUserNS() // reads /proc once and caches the answer
	read := []string{
		"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/gai.conf", "/etc/localtime", "/etc/mime.types",
	}
	dirs := []string{"/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"}
	for _, dir := range hostDirs {
		dirs = append(dirs, dir)
		read = append(read, namedFiles(dir)...)
	}
	if f := os.Getenv("SSL_CERT_FILE"); f != "" {
		read = append(read, f)
	}
	if d := os.Getenv("SSL_CERT_DIR"); d != "" {
		dirs = append(dirs, filepath.SplitList(d)...)
	}
	return confine.Apply(confine.Leave{
		Dirs: []string{root}, ReadDirs: dirs, ReadFiles: read, Caps: keptCaps(),
		// Registries are reached through these. Unix sockets are left out, because they lead to
		// other daemons.
		Families: []uint32{unix.AF_INET, unix.AF_INET6},
	})
}

// LandlockABI is the version of Landlock that this kernel has, 0 for none.
func LandlockABI() int { return confine.LandlockABI() }

// namedFiles returns the files that the hosts.toml files below dir name: certificates may be
// anywhere.
func namedFiles(dir string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "hosts.toml" {
			return nil //nolint:nilerr // a reader of the file reports the error
		}
		data, err := os.ReadFile(path) //nolint:gosec // the administrator's own directory
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		var doc map[string]any
		if toml.Unmarshal(data, &doc) == nil {
			found = append(found, paths(doc)...)
		}
		return nil
	})
	return found
}

func paths(v any) []string {
	var found []string
	switch v := v.(type) {
	case string:
		if filepath.IsAbs(v) {
			if fi, err := os.Stat(v); err == nil && fi.Mode().IsRegular() {
				found = append(found, v)
			}
		}
	case []any:
		for _, e := range v {
			found = append(found, paths(e)...)
		}
	case map[string]any:
		for _, e := range v {
			found = append(found, paths(e)...)
		}
	}
	return found
}
