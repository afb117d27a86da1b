// Package cdi gives containers the devices of the Container Device Interface that
// they ask for by name: https://github.com/cncf-tags/container-device-interface.
// It is a package of its own so that a program without such devices does not link
// the interface's library.
//
// It must not know any orchestrator. Start at Devices.
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

// Devices adds the devices of vendors' files to specs.
type Devices struct{ dirs []string }

var _ adjust.Devices = (*Devices)(nil)

// New returns the devices of the vendors' files in dirs, of which a later
// one counts more. They are read anew for each container that wants a device.
// InvalidArgument when a directory is no absolute path.
func New(dirs []string) (*Devices, error) {
	for _, d := range dirs {
		if !filepath.IsAbs(d) {
			return nil, fmt.Errorf("cdi: directory %q is not an absolute path: %w", d, errdefs.ErrInvalidArgument)
		}
	}
	return &Devices{dirs}, nil
}

// Inject adds devices, by their qualified names (vendor.com/class=name), to a
// spec. NotFound when there is one that no vendor's file has, InvalidArgument
// when a file asks for something impossible.
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
		return fmt.Errorf("cdi: %v: %w", err, errdefs.ErrInvalidArgument) //nolint:errorlint // the library has no classes
	}
	// A broken file may be why a device is not known.
	var broken []error
	for _, errs := range cache.GetErrors() {
		broken = append(broken, errs...)
	}
	err = fmt.Errorf("cdi: no device %s in %s: %w", strings.Join(missing, ", "), strings.Join(a.dirs, ", "), errdefs.ErrNotFound)
	if len(broken) > 0 {
		err = fmt.Errorf("%w; broken: %v", err, errors.Join(broken...)) //nolint:errorlint // only told
	}
	return err
}
