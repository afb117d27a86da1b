package adjust

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/longshore/longshore/internal/core"
)

// CDI gives containers the devices of the Container Device Interface that they
// ask for by name: https://github.com/cncf-tags/container-device-interface.
type CDI struct{ dirs []string }

var _ core.Adjuster = (*CDI)(nil)

// NewCDI returns an adjuster over the vendors' files in dirs, of which a later
// one counts more. They are read anew for each container that wants a device.
// InvalidArgument when a directory is no absolute path.
func NewCDI(dirs []string) (*CDI, error) {
	for _, d := range dirs {
		if !filepath.IsAbs(d) {
			return nil, fmt.Errorf("cdi: directory %q is not an absolute path: %w", d, errdefs.ErrInvalidArgument)
		}
	}
	return &CDI{dirs}, nil
}

// Adjust adds what c's config asks for.
func (a *CDI) Adjust(_ context.Context, _ *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	return a.Inject(spec, c.Config.CDI)
}

// Inject adds devices, by their qualified names (vendor.com/class=name), to a
// spec. NotFound when there is one that no vendor's file has, InvalidArgument
// when a file asks for something impossible.
func (a *CDI) Inject(spec *specs.Spec, names []string) error {
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
