package mesos

import (
	"context"
	"iter"
	"net/http"
	"time"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/reads"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/fetch"
	"github.com/longshore/longshore/internal/face/mesos/view"
)

// Reader reads what is on the node.
type Reader struct {
	records
	stats reads.Stats
}

// ReaderOf returns the Reader of a client's objects.
func ReaderOf(c *engine.Client) *Reader { return &Reader{c, c.Stats} }

// records is the part of engine.Client that a Reader uses.
type records interface {
	Sandboxes(ctx context.Context, f core.Filter) ([]core.Sandbox, error)
	Containers(ctx context.Context, f core.Filter) ([]core.Container, error)
	Events(ctx context.Context, since uint64, f core.Filter) iter.Seq2[core.Event, error]
	LastSeq(ctx context.Context) (uint64, error)
	Container(ctx context.Context, id core.ID) (core.Container, error)
}

// nodeState has the handlers of the calls that show the node as frameworks, executors
// and tasks. There is no master: this face is one framework among the owners, and the
// host name serves as the agent's id.
type nodeState struct {
	reader    *Reader
	allOwners bool // it shows other owners too
	agent     string
	dir       string // a path on the file system of the sandboxes
	gpus      int
	cache     *fetch.Cache
	started   time.Time
	counters  view.Counters
}

// read reads the node.
func (s *nodeState) read(ctx context.Context) (view.Node, error) {
	n := view.Node{Agent: s.agent}
	var err error
	if n.Sandboxes, err = s.reader.Sandboxes(ctx, core.Filter{}); err != nil {
		return n, err
	}
	n.Containers, err = s.reader.Containers(ctx, core.Filter{})
	return n, err
}

func (s *nodeState) getState(ctx context.Context, x *api.Exchange) error {
	n, err := s.read(ctx)
	if err != nil {
		return err
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_STATE.Enum(), GetState: n.State()})
}

func (s *nodeState) getFrameworks(ctx context.Context, x *api.Exchange) error {
	n, err := s.read(ctx)
	if err != nil {
		return err
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_FRAMEWORKS.Enum(), GetFrameworks: n.Frameworks()})
}

func (s *nodeState) getExecutors(ctx context.Context, x *api.Exchange) error {
	n, err := s.read(ctx)
	if err != nil {
		return err
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_EXECUTORS.Enum(), GetExecutors: n.Executors()})
}

func (s *nodeState) getTasks(ctx context.Context, x *api.Exchange) error {
	n, err := s.read(ctx)
	if err != nil {
		return err
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_TASKS.Enum(), GetTasks: n.Tasks()})
}

// getAgent describes the machine. There is no agent id, because the master assigns it.
func (s *nodeState) getAgent(_ context.Context, x *api.Exchange) error {
	all, err := view.MachineResources(s.dir, s.gpus)
	if err != nil {
		return err
	}
	info := &mesosv1.AgentInfo{Hostname: &s.agent, Resources: all}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_AGENT.Enum(), GetAgent: &mesosagent.Response_GetAgent{AgentInfo: info}})
}

func (s *nodeState) getMetrics(ctx context.Context, x *api.Exchange) error {
	all, err := view.MachineMetrics(s.started)
	if err != nil {
		return err
	}
	n, err := s.read(ctx)
	if err != nil {
		return err
	}
	has, err := view.MachineResources(s.dir, s.gpus)
	if err != nil {
		return err
	}
	all = append(all, view.WorkMetrics(n.State(), has)...)
	all = append(all, s.counters.Metrics()...)
	all = append(all, view.CacheMetrics(s.cache.Used())...)
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_METRICS.Enum(), GetMetrics: view.Metrics(all)})
}

// executorContainers are the running containers of the other owners, as those of
// executors.
func (s *nodeState) executorContainers(ctx context.Context) ([]*mesosagent.Response_GetContainers_Container, error) {
	if !s.allOwners {
		return nil, nil
	}
	n, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	sandboxes := map[core.ID]*core.Sandbox{}
	for i := range n.Sandboxes {
		sandboxes[n.Sandboxes[i].ID] = &n.Sandboxes[i]
	}
	var all []*mesosagent.Response_GetContainers_Container
	for i := range n.Containers {
		c := &n.Containers[i]
		sb := sandboxes[c.Sandbox]
		if c.Owner == core.OwnerMesos || sb == nil || !isRunning(c) {
			continue
		}
		r := view.ExecutorContainer(c, sb)
		if st, err := s.reader.stats.OfContainer(ctx, c, listStats); err == nil { // left out if it is not known, as in Mesos
			r.ResourceStatistics = view.Statistics(st)
		}
		all = append(all, r)
	}
	return all, nil
}

// refuseOthers returns Forbidden for a call about another owner's container, which is
// shown but cannot be changed.
func (s *nodeState) refuseOthers(ctx context.Context, call *mesosagent.Call) error {
	id := api.ContainerIDOf(call)
	if id == nil {
		id = call.GetAttachContainerInput().GetContainerId()
	}
	if id == nil || !s.allOwners {
		return nil
	}
	c, err := s.reader.Container(ctx, core.ID(api.RootOf(api.FormatID(id))))
	if err != nil || c.Owner == core.OwnerMesos {
		return nil //nolint:nilerr // there is no such container of another owner
	}
	return &api.Error{Code: http.StatusForbidden, Text: "403 Forbidden."}
}
