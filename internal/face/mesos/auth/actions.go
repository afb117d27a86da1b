package auth

import (
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// action is an action of Mesos' ACLs, by its name in the file.
type action string

const (
	viewFlags           action = "view_flags"
	setLogLevel         action = "set_log_level"
	accessSandboxes     action = "access_sandboxes"
	viewFrameworks      action = "view_frameworks"
	viewExecutors       action = "view_executors"
	viewTasks           action = "view_tasks"
	viewContainers      action = "view_containers"
	viewStandalone      action = "view_standalone_containers"
	launchStandalone    action = "launch_standalone_containers"
	killStandalone      action = "kill_standalone_containers"
	waitStandalone      action = "wait_standalone_containers"
	removeStandalone    action = "remove_standalone_containers"
	launchNestedAs      action = "launch_nested_containers_as_user"
	launchNestedUnder   action = "launch_nested_containers_under_parent_with_user"
	killNested          action = "kill_nested_containers"
	waitNested          action = "wait_nested_containers"
	removeNested        action = "remove_nested_containers"
	launchSessionsAs    action = "launch_nested_container_sessions_as_user"
	launchSessionsUnder action = "launch_nested_container_sessions_under_parent_with_user"
	attachInput         action = "attach_containers_input"
	attachOutput        action = "attach_containers_output"
	modifyProviders     action = "modify_resource_provider_configs"
	pruneImages         action = "prune_images"
)

// objectNames are the names of each action's objects in the file.
func objectNames() map[action]string {
	return map[action]string{
		viewFlags: "flags", setLogLevel: "level", accessSandboxes: "users", viewFrameworks: "users", viewExecutors: "users", viewTasks: "users",
		viewContainers: "users", viewStandalone: "users",
		launchStandalone: "users", killStandalone: "users", waitStandalone: "users", removeStandalone: "users",
		launchNestedAs: "users", launchNestedUnder: "users", killNested: "users", waitNested: "users", removeNested: "users",
		launchSessionsAs: "users", launchSessionsUnder: "users", attachInput: "users", attachOutput: "users",
		modifyProviders: "resource_providers", pruneImages: "images",
	}
}

// hasObject reports whether calls name an object of a: the user that a nested container
// is to run as. For standalone containers Mesos does not check the user.
func (a action) hasObject() bool { return a == launchNestedAs || a == launchSessionsAs }

// Allow reports whether a principal may make a call. If that depends on the process's user,
// AllowUser must be called too, when the uid is known.
func (r *Rules) Allow(who Principal, c *mesosagent.Call) bool { return r.allow(who, c, nil) }

// AllowUser reports whether a principal may make a call that starts a process with this
// uid. The uid decides and not the name, because an image can give any name to any uid.
func (r *Rules) AllowUser(who Principal, c *mesosagent.Call, uid uint32) bool {
	return r.allow(who, c, &uid)
}

func (r *Rules) allow(who Principal, c *mesosagent.Call, uid *uint32) bool {
	if r == nil {
		return true
	}
	for a, asked := range actionsOf(c) {
		if !r.allowsAction(a, who, object{user: user{asked, uid}, container: api.ContainerIDOf(c)}) {
			return false
		}
	}
	return true
}

// actionsOf returns the actions that a call needs, each with the user that the call
// names, "" for none.
func actionsOf(c *mesosagent.Call) map[action]string {
	switch c.GetType() {
	case mesosagent.Call_GET_FLAGS:
		return map[action]string{viewFlags: ""}
	case mesosagent.Call_SET_LOGGING_LEVEL:
		return map[action]string{setLogLevel: ""}
	case mesosagent.Call_LIST_FILES, mesosagent.Call_READ_FILE:
		return map[action]string{accessSandboxes: ""}
	case mesosagent.Call_ATTACH_CONTAINER_INPUT:
		return map[action]string{attachInput: ""}
	case mesosagent.Call_ATTACH_CONTAINER_OUTPUT:
		return map[action]string{attachOutput: ""}
	case mesosagent.Call_LAUNCH_NESTED_CONTAINER_SESSION:
		return map[action]string{launchSessionsAs: c.GetLaunchNestedContainerSession().GetCommand().GetUser(), launchSessionsUnder: ""}
	case mesosagent.Call_ADD_RESOURCE_PROVIDER_CONFIG, mesosagent.Call_UPDATE_RESOURCE_PROVIDER_CONFIG, mesosagent.Call_REMOVE_RESOURCE_PROVIDER_CONFIG:
		return map[action]string{modifyProviders: ""}
	case mesosagent.Call_PRUNE_IMAGES:
		return map[action]string{pruneImages: ""}
	default:
		return containerActionsOf(c)
	}
}

// containerActionsOf returns the actions of calls about a container. A call that serves
// standalone and nested containers needs the action of the one that its id names.
func containerActionsOf(c *mesosagent.Call) map[action]string {
	either := func(standalone, nested action) map[action]string {
		if api.ContainerIDOf(c).GetParent() == nil {
			return map[action]string{standalone: ""}
		}
		return map[action]string{nested: ""}
	}
	switch c.GetType() {
	case mesosagent.Call_LAUNCH_CONTAINER, mesosagent.Call_LAUNCH_NESTED_CONTAINER:
		if api.ContainerIDOf(c).GetParent() == nil {
			return map[action]string{launchStandalone: ""}
		}
		user := c.GetLaunchContainer().GetCommand().GetUser()
		if c.GetType() == mesosagent.Call_LAUNCH_NESTED_CONTAINER {
			user = c.GetLaunchNestedContainer().GetCommand().GetUser()
		}
		return map[action]string{launchNestedAs: user, launchNestedUnder: ""}
	case mesosagent.Call_WAIT_CONTAINER, mesosagent.Call_WAIT_NESTED_CONTAINER:
		return either(waitStandalone, waitNested)
	case mesosagent.Call_KILL_CONTAINER, mesosagent.Call_KILL_NESTED_CONTAINER:
		return either(killStandalone, killNested)
	case mesosagent.Call_REMOVE_CONTAINER, mesosagent.Call_REMOVE_NESTED_CONTAINER:
		return either(removeStandalone, removeNested)
	default:
		return nil // allowed to every authenticated client
	}
}
