// Package plugins reads the configurations of CNI networks and runs CNI's plugins.
//
// It knows no sandboxes: package network passes their ids and keeps the records. Start at Configs
// and Exec.
package plugins

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
)

// Configs is a directory of network configurations. They are read when they are used, so that a
// changed directory requires no restart.
type Configs struct {
	dir string
	log *slog.Logger

	mu    sync.Mutex // guards seen, lists, bad
	seen  string     // the names, sizes and times of the files when lists was read
	lists []*libcni.NetworkConfigList
	bad   []string // files that cannot be used, and why
}

// NewConfigs returns the configurations of a directory, which need not exist yet.
func NewConfigs(dir string, log *slog.Logger) *Configs { return &Configs{dir: dir, log: log} }

// Files returns a directory's configurations in the order of use.
func Files(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == ".conflist" || ext == ".conf" || ext == ".json" {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// all returns the configurations, read again when the directory has changed; the first is the
// default.
func (c *Configs) all() ([]*libcni.NetworkConfigList, []string, error) {
	files, err := Files(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read CNI configurations: %w", err)
	}
	var look strings.Builder
	for _, f := range files {
		if fi, err := os.Stat(f); err == nil {
			fmt.Fprintf(&look, "%s %d %d\n", f, fi.Size(), fi.ModTime().UnixNano())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if look.String() == c.seen {
		return c.lists, c.bad, nil
	}
	var lists []*libcni.NetworkConfigList
	var bad []string
	for _, f := range files {
		list, err := load(f)
		switch {
		case err != nil:
			bad = append(bad, fmt.Sprintf("%s: %s", filepath.Base(f), err))
			c.log.Warn("ignoring a CNI configuration that is not valid", "file", f, "error", err.Error())
		default:
			lists = append(lists, list)
		}
	}
	c.seen, c.lists, c.bad = look.String(), lists, bad
	if len(lists) > 0 {
		c.log.Info("CNI configuration read", "network", lists[0].Name, "networks", len(lists))
	}
	return lists, bad, nil
}

// load reads one file: a list of plugins or, depending on its name, a single plugin.
func load(file string) (*libcni.NetworkConfigList, error) {
	if filepath.Ext(file) == ".conflist" {
		list, err := libcni.NetworkConfFromFile(file)
		if err == nil && len(list.Plugins) == 0 {
			err = errors.New("no plugins in list")
		}
		return list, err
	}
	// The older form has one plugin without a list around it.
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var head struct {
		Name       string `json:"name"`
		CNIVersion string `json:"cniVersion"`
		Type       string `json:"type"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, err
	}
	if head.Type == "" {
		return nil, errors.New("no plugin type")
	}
	list, err := json.Marshal(map[string]any{"name": head.Name, "cniVersion": head.CNIVersion, "plugins": []json.RawMessage{raw}})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(list)
}

// Network returns the network of that name; "" or "default" is the first.
func (c *Configs) Network(name string) (*libcni.NetworkConfigList, error) {
	lists, bad, err := c.all()
	if err != nil {
		return nil, err
	}
	if name == "" || name == "default" {
		if len(lists) == 0 {
			return nil, fmt.Errorf("%s: %w", none(c.dir, bad), errdefs.ErrFailedPrecondition)
		}
		return lists[0], nil
	}
	i := slices.IndexFunc(lists, func(l *libcni.NetworkConfigList) bool { return l.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("no CNI network %q in %s: %w", name, c.dir, errdefs.ErrNotFound)
	}
	return lists[i], nil
}

func none(dir string, bad []string) string {
	if len(bad) > 0 {
		return fmt.Sprintf("no usable CNI configuration in %s: %s", dir, strings.Join(bad, "; "))
	}
	return "no CNI configuration in " + dir + ": put a .conflist there"
}

// Encode encodes a list together with its plugins, which may come from other files.
func Encode(list *libcni.NetworkConfigList) ([]byte, error) {
	out := struct {
		Name         string            `json:"name"`
		CNIVersion   string            `json:"cniVersion,omitempty"`
		DisableCheck bool              `json:"disableCheck,omitempty"`
		Plugins      []json.RawMessage `json:"plugins"`
	}{Name: list.Name, CNIVersion: list.CNIVersion, DisableCheck: list.DisableCheck}
	for _, p := range list.Plugins {
		out.Plugins = append(out.Plugins, p.Bytes)
	}
	return json.Marshal(out)
}
