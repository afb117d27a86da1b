// Package providers keeps the configurations of resource providers: a file each,
// in a directory, written whole or not at all. Nothing is launched by them.
//
// It must not know the API. Start at Dir.
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

// storage is the one type of a local resource provider that there is.
const storageType = "org.apache.mesos.rp.local.storage"

// maxName bounds a provider's name, so that its file has one too, in bytes.
const maxName = 200

// Check says what is wrong with a configuration, in Mesos' words.
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

// identifier: what Mesos takes for a name of Java's.
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

// New returns the directory at path, which it makes.
func New(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of resource providers: %w", err)
	}
	return &Dir{path: path}, nil
}

// file is where the configuration of a type and a name is. What they may be made
// of keeps it in the directory, and apart from any other.
func (d *Dir) file(kind, name string) string {
	return filepath.Join(d.path, kind+"."+name+".json")
}

// Add keeps a configuration that Check has nothing against. The same one is there
// already: nothing changes; another of its type and name: AlreadyExists.
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

// read reads a configuration as Marshal writes it: a file may have been made by
// hand.
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

// decode gives a configuration the form that Marshal writes.
func canonical(raw []byte) ([]byte, error) {
	var info mesosv1.ResourceProviderInfo
	if err := api.UnmarshalJSON(raw, &info); err != nil {
		return nil, err
	}
	return api.MarshalJSON(&info)
}

// Update puts a configuration in the place of the one of its type and name.
// NotFound.
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

// Remove drops the configuration of a type and a name; success when there is none.
func (d *Dir) Remove(kind, name string) error {
	if kind != storageType || !isIdentifier(name) || len(name) > maxName {
		return nil // Check lets none in
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := os.Remove(d.file(kind, name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
