package api

import (
	"errors"
	"fmt"
	"strings"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

// validate returns an error for an invalid call, in Mesos' words. For an input stream it checks the
// first record; validateInput checks the others.
func validate(c *mesosagent.Call) error {
	if c.Type == nil {
		return expecting("type")
	}
	name := strings.ToLower(c.GetType().String())
	if needsPayload(c.GetType()) && !hasPayload(c, name) {
		return expecting(name)
	}
	if c.GetType() == mesosagent.Call_ATTACH_CONTAINER_INPUT {
		return validateAttachInput(c.GetAttachContainerInput())
	}
	if err := validateProviderInfo(c, name); err != nil {
		return err
	}
	id := ContainerIDOf(c)
	if id == nil {
		return nil
	}
	if err := CheckID(id); err != nil {
		return fmt.Errorf("'%s.container_id' is invalid: %w", name, err)
	}
	if strings.Contains(name, "_nested_container") && id.GetParent() == nil {
		return expecting(name + ".container_id.parent")
	}
	return validateLaunch(c, name, id)
}

func expecting(what string) error {
	return fmt.Errorf("Expecting '%s' to be present", what) //nolint:staticcheck // Mesos' text
}

// needsPayload reports whether a call needs a message of its own besides its type.
func needsPayload(t mesosagent.Call_Type) bool {
	switch t {
	case mesosagent.Call_UNKNOWN, mesosagent.Call_GET_HEALTH, mesosagent.Call_GET_FLAGS, mesosagent.Call_GET_VERSION, mesosagent.Call_GET_LOGGING_LEVEL,
		mesosagent.Call_GET_STATE, mesosagent.Call_GET_CONTAINERS, mesosagent.Call_GET_FRAMEWORKS, mesosagent.Call_GET_EXECUTORS, mesosagent.Call_GET_OPERATIONS,
		mesosagent.Call_GET_TASKS, mesosagent.Call_GET_AGENT, mesosagent.Call_GET_RESOURCE_PROVIDERS, mesosagent.Call_PRUNE_IMAGES:
		return false
	default:
		return true
	}
}

// hasPayload reports whether the call's message for its type is set. The field has the
// type's name in lower case.
func hasPayload(c *mesosagent.Call, name string) bool {
	m := c.ProtoReflect()
	for f := range m.Range {
		if string(f.Name()) == name {
			return true
		}
	}
	return false
}

// ContainerIDOf returns the container that a call is about; nil if it is about none,
// and for input streams.
func ContainerIDOf(c *mesosagent.Call) *mesosv1.ContainerID {
	switch c.GetType() {
	case mesosagent.Call_LAUNCH_NESTED_CONTAINER:
		return c.GetLaunchNestedContainer().GetContainerId()
	case mesosagent.Call_WAIT_NESTED_CONTAINER:
		return c.GetWaitNestedContainer().GetContainerId()
	case mesosagent.Call_KILL_NESTED_CONTAINER:
		return c.GetKillNestedContainer().GetContainerId()
	case mesosagent.Call_REMOVE_NESTED_CONTAINER:
		return c.GetRemoveNestedContainer().GetContainerId()
	case mesosagent.Call_LAUNCH_NESTED_CONTAINER_SESSION:
		return c.GetLaunchNestedContainerSession().GetContainerId()
	case mesosagent.Call_ATTACH_CONTAINER_OUTPUT:
		return c.GetAttachContainerOutput().GetContainerId()
	case mesosagent.Call_LAUNCH_CONTAINER:
		return c.GetLaunchContainer().GetContainerId()
	case mesosagent.Call_WAIT_CONTAINER:
		return c.GetWaitContainer().GetContainerId()
	case mesosagent.Call_KILL_CONTAINER:
		return c.GetKillContainer().GetContainerId()
	case mesosagent.Call_REMOVE_CONTAINER:
		return c.GetRemoveContainer().GetContainerId()
	default:
		return nil
	}
}

func validateProviderInfo(c *mesosagent.Call, name string) error {
	i := c.GetAddResourceProviderConfig().GetInfo()
	if c.GetType() == mesosagent.Call_UPDATE_RESOURCE_PROVIDER_CONFIG {
		i = c.GetUpdateResourceProviderConfig().GetInfo()
	}
	if i.GetId() != nil {
		return fmt.Errorf("Expecting '%s.info.id' to be unset", name) //nolint:staticcheck // Mesos' text
	}
	return nil
}

func validateLaunch(c *mesosagent.Call, name string, id *mesosv1.ContainerID) error {
	command, container := c.GetLaunchContainer().GetCommand(), c.GetLaunchContainer().GetContainer()
	switch c.GetType() {
	case mesosagent.Call_LAUNCH_CONTAINER:
	case mesosagent.Call_LAUNCH_NESTED_CONTAINER:
		command, container = c.GetLaunchNestedContainer().GetCommand(), c.GetLaunchNestedContainer().GetContainer()
	case mesosagent.Call_LAUNCH_NESTED_CONTAINER_SESSION:
		command, container = c.GetLaunchNestedContainerSession().GetCommand(), c.GetLaunchNestedContainerSession().GetContainer()
	default:
		return nil
	}
	if err := validateEnvironment(command.GetEnvironment()); err != nil {
		return fmt.Errorf("'%s.command' is invalid: %w", name, err)
	}
	if err := validateContainerInfo(container); err != nil {
		return fmt.Errorf("'%s.container' is invalid: %w", name, err)
	}
	return validateResources(c.GetLaunchContainer().GetResources(), id)
}

func validateEnvironment(e *mesosv1.Environment) error {
	for _, v := range e.GetVariables() {
		fault := ""
		switch v.GetType() {
		case mesosv1.Environment_Variable_VALUE:
			if v.Value == nil {
				fault = "must have a value set"
			} else if v.Secret != nil {
				fault = "must not have a secret set"
			}
		case mesosv1.Environment_Variable_SECRET:
			if v.Secret == nil {
				fault = "must have a secret set"
			} else if v.Value != nil {
				fault = "must not have a value set"
			}
		case mesosv1.Environment_Variable_UNKNOWN:
			return errors.New("Environment variable of type 'UNKNOWN' is not allowed") //nolint:staticcheck // Mesos' text
		}
		if fault != "" {
			return fmt.Errorf("Environment variable '%s' of type '%s' %s", v.GetName(), v.GetType(), fault) //nolint:staticcheck // Mesos' text
		}
	}
	return nil
}

func validateContainerInfo(c *mesosv1.ContainerInfo) error {
	if c == nil {
		return nil
	}
	for _, v := range c.GetVolumes() {
		if err := validateVolume(v); err != nil {
			return fmt.Errorf("Invalid volume: %w", err) //nolint:staticcheck // Mesos' text
		}
	}
	if c.GetType() != mesosv1.ContainerInfo_DOCKER {
		return nil
	}
	if c.Docker == nil {
		return errors.New("DockerInfo 'docker' is not set for DOCKER typed ContainerInfo")
	}
	for _, p := range c.GetDocker().GetParameters() {
		if p.GetKey() == "name" {
			return errors.New("Parameter in DockerInfo must not be 'name'") //nolint:staticcheck // Mesos' text
		}
	}
	return nil
}

func validateVolume(v *mesosv1.Volume) error {
	set := 0
	for _, is := range []bool{v.HostPath != nil, v.Image != nil, v.Source != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return errors.New("Only one of them should be set: 'host_path', 'image' and 'source'") //nolint:staticcheck // Mesos' text
	}
	s := v.GetSource()
	if s == nil {
		return nil
	}
	name, ok := "", false
	switch s.GetType() {
	case mesosv1.Volume_Source_DOCKER_VOLUME:
		name, ok = "docker_volume", s.DockerVolume != nil
	case mesosv1.Volume_Source_HOST_PATH:
		name, ok = "host_path", s.HostPath != nil
	case mesosv1.Volume_Source_SANDBOX_PATH:
		name, ok = "sandbox_path", s.SandboxPath != nil
	case mesosv1.Volume_Source_SECRET:
		name, ok = "secret", s.Secret != nil
	case mesosv1.Volume_Source_UNKNOWN:
		return errors.New("'source.type' is unknown")
	}
	if !ok {
		return fmt.Errorf("'source.%s' is not set for %s volume", name, s.GetType())
	}
	return nil
}

func validateResources(list []*mesosv1.Resource, id *mesosv1.ContainerID) error {
	if len(list) > 0 && id.GetParent() != nil {
		return errors.New("Resources may not be specified when using 'launch_container' to launch nested containers") //nolint:staticcheck // Mesos' text
	}
	for _, r := range list {
		fault := ""
		switch scalar := r.GetScalar().GetValue(); {
		case r.GetName() == "":
			fault = "Invalid resources: Empty resource name"
		case r.GetType() == mesosv1.Value_SCALAR && (r.Scalar == nil || !(scalar >= 0)):
			fault = "Invalid resources: Invalid scalar resource '" + r.GetName() + "'"
		case r.GetName() == "gpus" && scalar != float64(int64(scalar)):
			fault = "Invalid resources: The 'gpus' resource must be an unsigned integer"
		case r.GetRole() != "*" || len(r.GetReservations()) > 0 || r.Reservation != nil:
			fault = "'launch_container.resources' must be unreserved"
		case r.GetDisk().GetPersistence() != nil:
			fault = "'launch_container.resources' may not use persistent volumes"
		case r.Revocable != nil:
			fault = "'launch_container.resources' must be non-revocable"
		}
		if fault != "" {
			return errors.New(fault)
		}
	}
	return nil
}
