package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
)

// Repaired is a volume with a damaged record and a damaged copy of it.
type Repaired struct {
	Dir string
	// Made means that it has a record again, without labels. Otherwise it cannot have one: where
	// its content is stood in its options.
	Made bool
}

// Repair writes new records for the volumes below dir with content and without a readable record.
// With dry it only returns them. No agent may run.
func Repair(dir string, dry bool) (all []Repaired, err error) {
	dirs, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		if !validName(filepath.Base(d)) {
			continue
		}
		if _, err := read(d); !errdefs.IsDataLoss(err) {
			continue
		}
		fi, err := os.Lstat(filepath.Join(d, dataDir)) // that of a volume with options is elsewhere
		if errors.Is(err, fs.ErrNotExist) {
			all = append(all, Repaired{Dir: d})
			continue
		}
		if err != nil {
			return all, fmt.Errorf("repair volume: %w", err)
		}
		name, owner := filepath.Base(d), core.Owner(filepath.Base(filepath.Dir(d)))
		made := fi.IsDir() && validName(name) && validName(string(owner))
		if made && !dry {
			// It counts as filled, so that an image's files do not come back among its content.
			for _, f := range []string{recordFile, copyFile} { // by hand more may be read of them
				if err := atomicfile.SetAside(filepath.Join(d, f)); err != nil {
					return all, fmt.Errorf("repair volume %s: %w", name, err)
				}
			}
			r := record{Volume: core.Volume{Owner: owner, Name: name, Path: filepath.Join(d, dataDir), Created: fi.ModTime().UTC(), Filled: true}}
			if err := write(d, r); err != nil {
				return all, fmt.Errorf("repair volume %s: %w", name, err)
			}
		}
		all = append(all, Repaired{Dir: d, Made: made})
	}
	return all, nil
}

// readable reports whether a record, as it is on disk, has a valid owner and name.
func readable(b []byte, r *record) error {
	if err := json.Unmarshal(b, r); err != nil {
		return err
	}
	if r.Name == "" || r.Owner == "" {
		return errors.New("it has no name")
	}
	return nil
}
