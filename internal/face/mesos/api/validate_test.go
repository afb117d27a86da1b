package api

import (
	"strings"
	"testing"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

func TestCalls(t *testing.T) {
	launch := func(more string) string {
		return `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"a"},` + more + `}}`
	}
	volume := func(v string) string {
		return launch(`"container":{"type":"MESOS","volumes":[{"mode":"RW","container_path":"p",` + v + `}]}`)
	}
	env := func(v string) string {
		return launch(`"command":{"environment":{"variables":[{"name":"E",` + v + `}]}}`)
	}
	badVolume := "'launch_container.container' is invalid: Invalid volume: "
	badEnv := "'launch_container.command' is invalid: "
	for body, want := range map[string]string{
		`{"type":"GET_STATE"}`:      "",
		`{"type":"GET_CONTAINERS"}`: "",
		`{"type":"PRUNE_IMAGES"}`:   "",
		`{}`:                        "Expecting 'type' to be present",
		`{"type":"GET_METRICS"}`:    "Expecting 'get_metrics' to be present",
		`{"type":"REMOVE_RESOURCE_PROVIDER_CONFIG"}`:                                                                                 "Expecting 'remove_resource_provider_config' to be present",
		`{"type":"LAUNCH_CONTAINER","wait_container":{"container_id":{"value":"a"}}}`:                                                "Expecting 'launch_container' to be present",
		`{"type":"WAIT_CONTAINER","wait_container":{"container_id":{"value":"a/b"}}}`:                                                "'wait_container.container_id' is invalid: 'ContainerID.value' 'a/b' contains invalid characters",
		`{"type":"KILL_NESTED_CONTAINER","kill_nested_container":{"container_id":{"value":"a"}}}`:                                    "Expecting 'kill_nested_container.container_id.parent' to be present",
		`{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{}}`:                                                              "Expecting 'attach_container_input.type' to be present",
		`{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"UNKNOWN"}}`:                                              "'attach_container_input.type' is unknown",
		`{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID"}}`:                                         "Expecting 'attach_container_input.container_id' to be present",
		`{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID","container_id":{"value":""}}}`:             "'attach_container_input.container_id' is invalid: ID must not be empty",
		`{"type":"ADD_RESOURCE_PROVIDER_CONFIG","add_resource_provider_config":{"info":{"id":{"value":"i"},"type":"t","name":"n"}}}`: "Expecting 'add_resource_provider_config.info.id' to be unset",

		launch(`"command":{"value":"ls"}`): "",
		env(`"value":"v"`):                 "",
		env(`"type":"SECRET","secret":{"type":"VALUE","value":{"data":""}}`): "",
		env(`"type":"UNKNOWN"`):                        badEnv + "Environment variable of type 'UNKNOWN' is not allowed",
		env(`"type":"VALUE"`):                          badEnv + "Environment variable 'E' of type 'VALUE' must have a value set",
		env(`"type":"VALUE","value":"v","secret":{}`):  badEnv + "Environment variable 'E' of type 'VALUE' must not have a secret set",
		env(`"type":"SECRET"`):                         badEnv + "Environment variable 'E' of type 'SECRET' must have a secret set",
		env(`"type":"SECRET","value":"v","secret":{}`): badEnv + "Environment variable 'E' of type 'SECRET' must not have a value set",

		volume(`"host_path":"/h"`): "",
		volume(`"host_path":"/h","source":{"type":"HOST_PATH","host_path":{"path":"/h"}}`): badVolume + "Only one of them should be set: 'host_path', 'image' and 'source'",
		volume(`"x":1`):                         badVolume + "Only one of them should be set: 'host_path', 'image' and 'source'",
		volume(`"source":{"type":"SECRET"}`):    badVolume + "'source.secret' is not set for SECRET volume",
		volume(`"source":{"type":"UNKNOWN"}`):   badVolume + "'source.type' is unknown",
		volume(`"source":{"type":"HOST_PATH"}`): badVolume + "'source.host_path' is not set for HOST_PATH volume",

		launch(`"container":{"type":"DOCKER"}`): "'launch_container.container' is invalid: DockerInfo 'docker' is not set for DOCKER typed ContainerInfo",
		launch(`"container":{"type":"DOCKER","docker":{"image":"i","parameters":[{"key":"name","value":"v"}]}}`): "'launch_container.container' is invalid: Parameter in DockerInfo must not be 'name'",

		launch(`"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":0.5}}]`):                                                       "",
		launch(`"resources":[{"name":"cpus","type":"SCALAR"}]`):                                                                              "Invalid resources: Invalid scalar resource 'cpus'",
		launch(`"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":-1}}]`):                                                        "Invalid resources: Invalid scalar resource 'cpus'",
		launch(`"resources":[{"name":"gpus","type":"SCALAR","scalar":{"value":0.5}}]`):                                                       "Invalid resources: The 'gpus' resource must be an unsigned integer",
		launch(`"resources":[{"name":"mem","type":"SCALAR","scalar":{"value":5},"role":"prod"}]`):                                            "'launch_container.resources' must be unreserved",
		launch(`"resources":[{"name":"mem","type":"SCALAR","scalar":{"value":5},"revocable":{}}]`):                                           "'launch_container.resources' must be non-revocable",
		launch(`"resources":[{"name":"disk","type":"SCALAR","scalar":{"value":5},"disk":{"persistence":{"id":"i"}}}]`):                       "'launch_container.resources' may not use persistent volumes",
		strings.Replace(launch(`"resources":[{"name":"mem","type":"SCALAR","scalar":{"value":5}}]`), `"a"`, `"a","parent":{"value":"b"}`, 1): "Resources may not be specified when using 'launch_container' to launch nested containers",
	} {
		var c mesosagent.Call
		if err := UnmarshalJSON([]byte(body), &c); err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		err := validate(&c)
		if err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%s:\n%v, want\n%s", body, err, want)
		}
	}
}

// TestEveryCallIsLookedAt: the payload of each type is the field of its name, and
// only the plain ones go without.
func TestEveryCallIsLookedAt(t *testing.T) {
	plain := 0
	for n, name := range mesosagent.Call_Type_name {
		err := validate(&mesosagent.Call{Type: mesosagent.Call_Type(n).Enum()})
		if err == nil {
			plain++
		} else if want := "Expecting '" + strings.ToLower(name) + "' to be present"; err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if plain != 14 {
		t.Errorf("%d types go without a payload", plain)
	}
}
