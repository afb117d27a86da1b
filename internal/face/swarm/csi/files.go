package csi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// files are the volumes on this node: a directory for each, with its record and with
// where the driver stages and publishes it.
type files struct{ dir string }

// place says where a volume is.
type place struct{ dir, staged, published string }

// record is the record of a volume, without secrets.
type record struct {
	assigned *swarmv1.VolumeAssignment
	ready    bool
}

// stored is a record in its file.
type stored struct {
	Assigned []byte `json:"assigned"` // protobuf
	Ready    bool   `json:"ready"`
}

const recordName = "volume.json"

// checkID refuses ids that could be no name of a directory.
func checkID(id string) error {
	if !core.IsName(id, "_-", 128) {
		return invalid.Errorf("cluster volume %q: that is no id", id)
	}
	return nil
}

func (f files) place(id string) place {
	dir := filepath.Join(f.dir, id)
	return place{dir: dir, staged: filepath.Join(dir, "staged"), published: filepath.Join(dir, "published")}
}

// prepare makes the directories for a driver: the staging one, and the parent of the target.
func (f files) prepare(id string) (place, error) {
	at := f.place(id)
	if err := os.MkdirAll(at.staged, 0o700); err != nil {
		return at, fmt.Errorf("make a directory for a cluster volume: %w", err)
	}
	return at, nil
}

func (f files) write(r record) error {
	at := f.place(r.assigned.GetId())
	if err := os.MkdirAll(at.dir, 0o700); err != nil {
		return fmt.Errorf("make a directory for a cluster volume: %w", err)
	}
	data, err := proto.Marshal(r.assigned)
	if err != nil {
		return fmt.Errorf("record a cluster volume: %w", err)
	}
	text, err := json.Marshal(stored{Assigned: data, Ready: r.ready})
	if err != nil {
		return fmt.Errorf("record a cluster volume: %w", err)
	}
	return atomicfile.Replace(filepath.Join(at.dir, recordName), text, 0o600)
}

// read finds the volumes of an earlier agent. A directory without a record is from an agent that
// died before any call of a driver. An unreadable record is left out: the managers will send the
// volume or its removal.
func (f files) read() (list []record, damaged []error, err error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read the cluster volumes: %w", err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(f.dir, e.Name(), recordName))
		if errors.Is(err, fs.ErrNotExist) {
			if err := f.remove(e.Name()); err != nil {
				damaged = append(damaged, err)
			}
			continue
		}
		var s stored
		a := &swarmv1.VolumeAssignment{}
		if err == nil {
			err = json.Unmarshal(text, &s)
		}
		if err == nil {
			err = proto.Unmarshal(s.Assigned, a)
		}
		if err == nil && a.GetId() != e.Name() {
			err = fmt.Errorf("it is that of volume %q", a.GetId())
		}
		if err != nil {
			damaged = append(damaged, fmt.Errorf("the record of cluster volume %s: %w", e.Name(), err))
			continue
		}
		list = append(list, record{assigned: a, ready: s.Ready})
	}
	return list, damaged, nil
}

// remove removes the directories of a volume that is unmounted: a driver need not remove its
// target. A directory that is a mount or not empty stays and is an error: no file of a volume is
// ever deleted here.
func (f files) remove(id string) error {
	at := f.place(id)
	for _, dir := range []string{at.published, at.staged} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("its driver has left something: %w", err)
		}
	}
	if err := os.Remove(filepath.Join(at.dir, recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget a cluster volume: %w", err)
	}
	// The rest of an interrupted write.
	entries, err := os.ReadDir(at.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget a cluster volume: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "."+recordName+".") {
			continue
		}
		if err := os.Remove(filepath.Join(at.dir, e.Name())); err != nil {
			return fmt.Errorf("forget a cluster volume: %w", err)
		}
	}
	if err := os.Remove(at.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget a cluster volume: %w", err)
	}
	return nil
}
