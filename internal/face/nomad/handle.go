package nomad

import (
	"encoding/json"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// handleVersion is the version of our state in Nomad's handle. Another one is refused.
const handleVersion = 1

// state is the driver_state of a handle. The task's id finds the container; this
// tells that it is the same one.
type state struct {
	Container core.ID `json:"container"`
}

func newHandle(t *nomaddriver.TaskConfig, c core.Container) (*nomaddriver.TaskHandle, error) {
	data, err := json.Marshal(state{Container: c.ID})
	if err != nil {
		return nil, err
	}
	return &nomaddriver.TaskHandle{Version: handleVersion, Config: t, State: nomaddriver.TaskState_RUNNING, DriverState: data}, nil
}

// readHandle returns the task's id and its state. InvalidArgument for a handle that is not ours, or
// not of this version.
func readHandle(h *nomaddriver.TaskHandle) (id string, st state, err error) {
	switch {
	case h == nil:
		return "", st, invalid.Errorf("recover: no handle")
	case h.GetVersion() != handleVersion:
		return "", st, invalid.Errorf("recover: the handle is of version %d, this agent knows %d", h.GetVersion(), handleVersion)
	case h.GetConfig().GetId() == "":
		return "", st, invalid.Errorf("recover: the handle names no task")
	}
	if err := json.Unmarshal(h.GetDriverState(), &st); err != nil || st.Container == "" {
		return "", st, invalid.Errorf("recover task %s: its state cannot be read", h.GetConfig().GetId())
	}
	return h.GetConfig().GetId(), st, nil
}
