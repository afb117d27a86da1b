package guest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/guest/cdi"
)

// CDI gives containers the devices that they name by the Container Device Interface. The zero value reads no files.
type CDI struct {
	// Dir has the machine's files, which its own programs write.
	Dir cdi.Dir
	// Wait is how long to wait for these files.
	Wait time.Duration
	// Visible has the variable VISIBLE_CDI_DEVICES of a container name devices, too.
	Visible bool
}

// CDIDir is where a guest's programs write their files.
const CDIDir = cdi.Dir("/var/run/cdi")

// sandboxAnnotation is how a shim says that a container is the pod's own, which gets no devices.
const sandboxAnnotation, sandboxContainer = "io.katacontainers.pkg.oci.container_type", "pod_sandbox"

// Inject changes the spec of a container by the devices that it names. It waits for their files.
func (c CDI) Inject(ctx context.Context, s *specs.Spec) error {
	if c.Dir == "" || s.Annotations[sandboxAnnotation] == sandboxContainer {
		return nil
	}
	names, err := cdi.Names(s.Annotations)
	if err != nil {
		return err
	}
	if c.Visible {
		more, err := cdi.Visible(s.Process.Env)
		if err != nil {
			return err
		}
		for _, n := range more {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	edits, err := c.Dir.Find(names)
	if errors.Is(err, cdi.ErrNotYet) && c.Wait > 0 {
		late := await(ctx, "no file in "+string(c.Dir), c.Wait, func() bool {
			edits, err = c.Dir.Find(names)
			return !errors.Is(err, cdi.ErrNotYet)
		})
		err = errors.Join(err, late)
	}
	if err != nil {
		return err
	}
	return edits.Apply(s)
}
