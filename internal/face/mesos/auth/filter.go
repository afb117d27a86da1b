package auth

import (
	"slices"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

// Filter removes the parts of an answer that a principal may not see. Lists become shorter; the
// call itself does not fail.
func (r *Rules) Filter(who Principal, resp *mesosagent.Response) {
	if r == nil {
		return
	}
	may := func(a action) bool { return r.allowsAction(a, who, object{}) }
	if l := resp.GetGetContainers(); l != nil {
		l.Containers = slices.DeleteFunc(l.GetContainers(), func(c *mesosagent.Response_GetContainers_Container) bool {
			id := containerIDOf(c)
			return !r.allowsAction(viewActionOf(c, id), who, object{container: id})
		})
	}
	for _, l := range []*mesosagent.Response_GetFrameworks{resp.GetGetFrameworks(), resp.GetGetState().GetGetFrameworks()} {
		if l != nil && !may(viewFrameworks) {
			l.Frameworks, l.CompletedFrameworks = nil, nil
		}
	}
	for _, l := range []*mesosagent.Response_GetExecutors{resp.GetGetExecutors(), resp.GetGetState().GetGetExecutors()} {
		if l != nil && (!may(viewFrameworks) || !may(viewExecutors)) {
			l.Executors, l.CompletedExecutors = nil, nil
		}
	}
	for _, l := range []*mesosagent.Response_GetTasks{resp.GetGetTasks(), resp.GetGetState().GetGetTasks()} {
		if l != nil && (!may(viewFrameworks) || !may(viewTasks)) {
			l.PendingTasks, l.QueuedTasks, l.LaunchedTasks, l.TerminatedTasks, l.CompletedTasks = nil, nil, nil, nil, nil
		}
	}
}

// containerIDOf returns a container's id with its parents.
func containerIDOf(c *mesosagent.Response_GetContainers_Container) *mesosv1.ContainerID {
	if id := c.GetContainerStatus().GetContainerId(); id != nil {
		return id
	}
	return c.GetContainerId()
}

// viewActionOf returns the action that seeing a container needs. Executors' containers
// count as nested ones.
func viewActionOf(c *mesosagent.Response_GetContainers_Container, id *mesosv1.ContainerID) action {
	if c.FrameworkId != nil || id.GetParent() != nil {
		return viewContainers
	}
	return viewStandalone
}
