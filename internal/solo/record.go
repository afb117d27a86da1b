package solo

import (
	"encoding/json"
	"path"
	"slices"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/derive"
	"github.com/longshore/longshore/internal/health"
	"github.com/longshore/longshore/internal/logs"
)

// Record is the content of a container's Data.
type Record struct {
	Image      string `json:"image"` // as the user named it, resolved to a full name
	AutoRemove bool   `json:"auto_remove,omitempty"`
	Privileged bool   `json:"privileged,omitempty"`
	Log        string `json:"log,omitempty"` // path of the output, "" if none is written
	// Anonymous are the volumes without a name that were made for the container.
	Anonymous []string `json:"anonymous,omitempty"`
	Later     bool     `json:"later,omitempty"` // created without a start: a later call starts it
	// Health is the complete health check, nil for none: a later agent may not have the image any more.
	Health      *health.Check `json:"health,omitempty"`
	OnUnhealthy string        `json:"on_unhealthy,omitempty"`
	Settings    Settings      `json:"asked"`
	// Request is the whole request without its credentials, in the JSON of protobuf: longshore unit --new makes flags of it.
	Request json.RawMessage `json:"request,omitempty"`
	// Face is a face's own part.
	Face json.RawMessage `json:"face,omitempty"`
}

// RecordOf returns the record of a container of a service, and a zero Record for others.
func RecordOf(c core.Container) Record {
	var r Record
	if slices.Contains(owners(), c.Owner) && json.Unmarshal(c.Data, &r) != nil {
		return Record{}
	}
	return r
}

// OwnLog returns the log that a service writes for a container. It is nil for others, because their own face rotates and removes
// their logs.
func OwnLog(c core.Container) *core.Sink {
	list := logs.Whole(c.Config.IO.Sinks)
	if log := RecordOf(c).Log; log == "" || len(list) != 1 || list[0].Path != log {
		return nil
	}
	return &list[0]
}

// Settings are the user's settings of a container's program. An image of the container gets them as well.
type Settings struct {
	Env             []string `json:"env,omitempty"`
	Command         []string `json:"command,omitempty"`
	Entrypoint      string   `json:"entrypoint,omitempty"`
	ClearEntrypoint bool     `json:"clear_entrypoint,omitempty"`
	User            string   `json:"user,omitempty"`
	Workdir         string   `json:"workdir,omitempty"`
	Expose          []string `json:"expose,omitempty"`
	StopSignal      string   `json:"stop_signal,omitempty"`
	// Binds are for containers with --volumes-from. They are not part of an image.
	Binds []Bind `json:"binds,omitempty"`
}

// settingsOf returns the settings of a request.
func settingsOf(req *longshorev1.CreateRequest) Settings {
	return Settings{
		req.GetEnv(), req.GetCommand(), req.GetEntrypoint(), req.GetClearEntrypoint(), req.GetUser(), req.GetWorkdir(), req.GetExpose(), req.GetStopSignal(),
		bindsOf(req.GetMounts()),
	}
}

// addTo adds the settings to those of an image.
func (a Settings) addTo(s derive.Settings) error {
	s.Env(a.Env)
	switch {
	case a.Entrypoint != "":
		s.Set("Entrypoint", []string{a.Entrypoint})
	case a.ClearEntrypoint:
		s.Set("Entrypoint", nil)
	}
	if len(a.Command) > 0 {
		s.Set("Cmd", a.Command)
	} else if a.Entrypoint != "" || a.ClearEntrypoint {
		s.Set("Cmd", nil) // the image's command belongs to its own entry point
	}
	for name, v := range map[string]string{"User": a.User, "WorkingDir": a.Workdir, "StopSignal": a.StopSignal} {
		if v != "" {
			s.Set(name, v)
		}
	}
	return s.Expose(a.Expose)
}

// Bind is a container's mount of a path of the host.
type Bind struct {
	Source      string `json:"source"`
	Target      string `json:"target"`
	ReadOnly    bool   `json:"read_only,omitempty"`
	Propagation string `json:"propagation,omitempty"`
}

func bindsOf(mounts []*longshorev1.Mount) (list []Bind) {
	for _, m := range mounts {
		if path.IsAbs(m.GetSource()) {
			list = append(list, Bind{m.GetSource(), m.GetTarget(), m.GetReadOnly(), m.GetPropagation()})
		}
	}
	return list
}
