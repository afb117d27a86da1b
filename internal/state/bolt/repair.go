package bolt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dbfile"
	"github.com/longshore/longshore/internal/state"
)

// live returns how live.db is opened.
func (o *Options) live() dbfile.Options {
	return dbfile.Options{
		Path: filepath.Join(o.State, "live.db"), Volatile: true, Logger: o.Logger, Full: o.StateFull, Valid: valid, Useless: beginning, Orphan: orphan,
		Skip: func(bucket string) bool { return bucket == eventsBucket },
		Loss: "the node does not know its containers: those that run are ended, and are reported as lost",
	}
}

// durable returns how durable.db is opened.
func (o *Options) durable() dbfile.Options {
	return dbfile.Options{
		Path: filepath.Join(o.Root, "durable.db"), Logger: o.Logger, Full: o.RootFull, Valid: valid, Orphan: orphan,
		Loss: "containers of the command line do not outlive a boot, the network chooses new address ranges, and the faces have lost their records: Swarm's tasks, Mesos' and Nomad's positions in the event log",
	}
}

// valid reports whether an entry of live.db or durable.db can be read.
func valid(bucket []string, key, value []byte) bool {
	switch name := bucket[0]; {
	case len(bucket) != 1:
		return false
	case name == state.KindSandbox:
		return json.Unmarshal(value, new(core.Sandbox)) == nil
	case name == state.KindContainer:
		return json.Unmarshal(value, new(core.Container)) == nil
	case name == metaBucket && string(key) == lostObjectsKey:
		return json.Unmarshal(value, new([]core.LostObject)) == nil
	case name == metaBucket && string(key) == schemaKey:
		_, err := strconv.Atoi(string(value))
		return err == nil
	case name == metaBucket:
		return false
	}
	return strings.HasPrefix(bucket[0], scopePrefix)
}

// beginning reports whether a record is of an object's creation. If it is outdated, recovery would
// take a running object for an uncompleted one and remove it.
func beginning(bucket []string, value []byte) bool {
	var v struct{ State string }
	return (bucket[0] == state.KindSandbox || bucket[0] == state.KindContainer) &&
		(json.Unmarshal(value, &v) != nil || v.State == string(core.SandboxCreating) || v.State == string(core.ContainerCreating))
}

// orphan reports whether a record is of a container without a record of its sandbox or its parent:
// no verb could use or remove it.
func orphan(has func(key string, bucket ...string) bool, bucket []string, value []byte) bool {
	if bucket[0] != state.KindContainer {
		return false
	}
	var c core.Container
	return json.Unmarshal(value, &c) != nil || !has(string(c.Sandbox), state.KindSandbox) || c.Parent != "" && !has(string(c.Parent), state.KindContainer)
}

// Repair repairs the damaged files of a closed store. With dry it only returns what it would do.
// Events that live.db has lost are in the event log, and are restored when the store is opened.
func Repair(o Options, dry bool) ([]dbfile.Report, error) {
	var all []dbfile.Report
	for _, f := range []dbfile.Options{o.durable(), o.live()} {
		r, err := dbfile.Repair(f, dry)
		if err != nil {
			return all, fmt.Errorf("repair %s: %w", f.Path, err)
		}
		if r.Damage != "" && f.Path == o.live().Path {
			r.Lost = lostOf(&r, filepath.Join(o.Root, "events.log"))
		}
		all = append(all, r)
	}
	r, err := repairLog(filepath.Join(o.Root, "events.log"), dry)
	return append(all, r), err
}

// lostOf names the objects that exist according to the event log and are not in the repaired
// live.db. With an event log that cannot be read it names none.
func lostOf(r *dbfile.Report, path string) (lost []string) {
	b, err := atomicfile.Read(path, math.MaxInt64-1)
	if err != nil {
		return nil
	}
	c := census{}
	if _, err := readLog(bytes.NewReader(b), path, c.line); err != nil {
		return nil
	}
	for _, o := range c.list() {
		switch {
		case o.Container != "" && !r.Has(string(o.Container), state.KindContainer):
			lost = append(lost, fmt.Sprintf("container %s of %s (%s)", o.Key, o.Owner, o.Container))
		case o.Container == "" && !r.Has(string(o.Sandbox), state.KindSandbox):
			lost = append(lost, fmt.Sprintf("sandbox %s of %s (%s)", o.Key, o.Owner, o.Sandbox))
		}
	}
	return lost
}

// repairLog gives the event log the header of the present schema, where that was damaged so that
// it says another one: the lines tell by their checksums. All other damage is mended when the
// log is opened.
func repairLog(path string, dry bool) (r dbfile.Report, err error) {
	r.Path = path
	b, err := atomicfile.Read(path, math.MaxInt64-1)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, nil
	case errors.Is(err, atomicfile.ErrUnreadable):
		r.Damage = err.Error()
		r.Places = []string{"all events that are not in the live records; the agent begins a new log when it starts"}
		return r, nil
	case err != nil:
		return r, err
	}
	found, err := readLog(bytes.NewReader(b), path, func(string, uint64, []byte) error { r.Entries++; return nil })
	switch {
	case err == nil && found.damaged == 0 && (found.end > 0 || found.size == 0):
		return r, nil
	case err == nil:
		r.Damage = fmt.Sprintf("%d of its lines are damaged", max(found.damaged, 1))
		r.Places = []string{"events in the damaged lines, unless the live records still have them; the agent goes on with the others when it starts"}
		return r, nil
	}
	rest, lines := b[min(found.head, int64(len(b))):], 0
	if _, err := readLog(bytes.NewReader(append([]byte(logHeader+strconv.Itoa(Schema())+"\n"), rest...)), path, func(string, uint64, []byte) error { lines++; return nil }); err != nil || lines == 0 {
		return r, fmt.Errorf("repair %s: it is of a newer version: %w", path, errdefs.ErrFailedPrecondition)
	}
	r.Damage, r.Whole, r.Entries = "its first line says another version than its others", true, lines
	if dry {
		return r, nil
	}
	return r, atomicfile.Write(path, append([]byte(logHeader+strconv.Itoa(Schema())+"\n"), rest...), 0o600)
}
