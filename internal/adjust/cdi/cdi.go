// Package cdi adds the devices that containers ask for by name to their specs, as the Container
// Device Interface specifies: https://github.com/cncf-tags/container-device-interface. It is a
// package of its own so that programs without such devices do not link the interface's library.
//
// It knows no orchestrator. Start at Devices.
package cdi

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/longshore/longshore/internal/adjust"
)

// Devices adds to specs the devices described in vendors' files.
type Devices struct{ dirs []string }

var _ adjust.Devices = (*Devices)(nil)

// New returns the devices described by the vendors' files in dirs; files in later directories
// take precedence. The files are read again for each container that asks for a device.
// InvalidArgument when a directory is not an absolute path.
func New(dirs []string) (*Devices, error) {
	for _, d := range dirs {
		if !filepath.IsAbs(d) {
			return nil, fmt.Errorf("cdi: directory %q is not an absolute path: %w", d, errdefs.ErrInvalidArgument)
		}
	}
	return &Devices{dirs}, nil
}

// Inject adds devices, by their qualified names (vendor.com/class=name), to a spec. NotFound when
// no vendor's file has one of them, InvalidArgument when a file asks for something impossible.
func (a *Devices) Inject(spec *specs.Spec, names []string) error {
	if len(names) == 0 {
		return nil
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(a.dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("cdi: %w", err)
	}
	missing, err := cache.InjectDevices(spec, names...)
	if err == nil {
		return nil
	}
	if len(missing) == 0 {
		return fmt.Errorf("cdi: %v: %w", err, errdefs.ErrInvalidArgument) //nolint:errorlint // the library's errors have no class
	}
	// A malformed file may be why a device is unknown.
	var broken []error
	for _, errs := range cache.GetErrors() {
		broken = append(broken, errs...)
	}
	err = fmt.Errorf("cdi: unknown device %s in %s: %w", strings.Join(missing, ", "), strings.Join(a.dirs, ", "), errdefs.ErrNotFound)
	if len(broken) > 0 {
		err = fmt.Errorf("%w; malformed files: %v", err, errors.Join(broken...)) //nolint:errorlint // for information only
	}
	return err
}
