// Package providers stores the configurations of resource providers: one file each,
// written atomically. No provider is launched by them.
//
// It must not know the API. Start reading at Dir.
package providers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// storageType is the only type of local resource provider in Mesos.
const storageType = "org.apache.mesos.rp.local.storage"

// maxName limits the length of a provider's name, which becomes part of a file name, in
// bytes.
const maxName = 200

// Check returns an error for an invalid configuration, in Mesos' words.
func Check(info *mesosv1.ResourceProviderInfo) error {
	plugin := info.GetStorage().GetPlugin()
	switch {
	case info.GetType() != storageType:
		return fmt.Errorf("Unknown local resource provider type '%s'", info.GetType()) //nolint:staticcheck // Mesos' text
	case !isIdentifier(info.GetName()):
		return fmt.Errorf("Resource provider name '%s' does not follow Java package naming convention", info.GetName()) //nolint:staticcheck // Mesos' text
	case len(info.GetName()) > maxName:
		return fmt.Errorf("Resource provider name '%s' exceeds the maximum length (%d)", info.GetName(), maxName) //nolint:staticcheck // as Mesos begins its texts
	case info.Storage == nil:
		return errors.New("'ResourceProviderInfo.storage' must be set")
	case !isPackageName(plugin.GetType()) || !isIdentifier(plugin.GetName()):
		return fmt.Errorf("CSI plugin type '%s' and name '%s' does not follow Java package naming convention", plugin.GetType(), plugin.GetName())
	}
	for _, c := range plugin.GetContainers() {
		if slices.Contains(c.GetServices(), mesosv1.CSIPluginContainerInfo_NODE_SERVICE) {
			return nil
		}
	}
	return fmt.Errorf("%s not found", mesosv1.CSIPluginContainerInfo_NODE_SERVICE)
}

// isIdentifier reports whether Mesos accepts s as a Java identifier.
func isIdentifier(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

func isPackageName(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if !isIdentifier(part) {
			return false
		}
	}
	return true
}

// Dir is a directory of configurations.
type Dir struct {
	path string
	mu   sync.Mutex // serializes the changes of files in path
}

// New returns the directory at path, which it creates if necessary.
func New(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of resource providers: %w", err)
	}
	return &Dir{path: path}, nil
}

// file is the path of the configuration of a type and name. Check refuses characters that could
// make it leave the directory or equal another one.
func (d *Dir) file(kind, name string) string {
	return filepath.Join(d.path, kind+"."+name+".json")
}

// Add stores a configuration that Check accepts. It does nothing if the same
// configuration exists, and returns AlreadyExists for another one of the same type and
// name.
func (d *Dir) Add(info *mesosv1.ResourceProviderInfo) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	want, err := api.MarshalJSON(info)
	if err != nil {
		return err
	}
	path := d.file(info.GetType(), info.GetName())
	switch got, err := read(path); {
	case errors.Is(err, fs.ErrNotExist):
		return atomicfile.Write(path, want, 0o644)
	case err != nil:
		return err
	case !bytes.Equal(got, want):
		return fmt.Errorf("resource provider %s: %w", path, errdefs.ErrAlreadyExists)
	}
	return nil
}

// read reads a configuration in the form that MarshalJSON writes, because a file may
// have been written by hand.
func read(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	canonical, err := canonical(raw)
	if err != nil {
		return nil, fmt.Errorf("resource provider config %s: %w: %w", path, err, errdefs.ErrDataLoss)
	}
	return canonical, nil
}

// canonical rewrites a configuration in the form of MarshalJSON.
func canonical(raw []byte) ([]byte, error) {
	var info mesosv1.ResourceProviderInfo
	if err := api.UnmarshalJSON(raw, &info); err != nil {
		return nil, err
	}
	return api.MarshalJSON(&info)
}

// Update replaces the configuration of the same type and name. NotFound.
func (d *Dir) Update(info *mesosv1.ResourceProviderInfo) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := d.file(info.GetType(), info.GetName())
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("resource provider %s: %w", path, errdefs.ErrNotFound)
	} else if err != nil {
		return err
	}
	want, err := api.MarshalJSON(info)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, want, 0o644)
}

// Remove deletes the configuration of a type and name; it succeeds if there is none.
func (d *Dir) Remove(kind, name string) error {
	if kind != storageType || !isIdentifier(name) || len(name) > maxName {
		return nil // Check accepts no such name
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := os.Remove(d.file(kind, name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
