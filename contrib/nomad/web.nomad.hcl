job "web" {
  group "web" {
    network {
      mode = "bridge"
      port "http" { to = 8080 }
    }

    task "httpd" {
      driver = "longshore"

      config {
        image           = "docker.io/library/busybox:1.37"
        command         = "httpd"
        args            = ["-f", "-p", "8080", "-h", "/local"]
        readonly_rootfs = true
        cap_drop        = ["ALL"]
      }

      template {
        data        = "hello from {{ env \"NOMAD_ALLOC_ID\" }}\n"
        destination = "local/index.html"
      }

      service {
        name     = "web"
        port     = "http"
        provider = "nomad"
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
