package acl

import (
	"slices"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

// Show takes out of an answer what a principal may not see: lists are shorter for
// some, and are refused to nobody.
func (r *Rules) Show(principal string, resp *mesosagent.Response) {
	if r == nil {
		return
	}
	may := func(a action) bool { return r.allowed(a, principal, "") }
	if l := resp.GetGetContainers(); l != nil {
		l.Containers = slices.DeleteFunc(l.GetContainers(), func(c *mesosagent.Response_GetContainers_Container) bool {
			return !may(viewOf(c))
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

// viewOf is what it takes to see a container: those of executors are like nested
// ones.
func viewOf(c *mesosagent.Response_GetContainers_Container) action {
	id := c.GetContainerStatus().GetContainerId()
	if id == nil {
		id = c.GetContainerId()
	}
	if c.FrameworkId != nil || id.GetParent() != nil {
		return viewContainers
	}
	return viewStandalone
}
