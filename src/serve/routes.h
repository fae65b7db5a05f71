// The registration table: each file of serve/routes/ adds its routes by one of these.
#pragma once

namespace deepinfer::serve {

class Router;
class Service;

void add_health_routes(Router& router, Service& service);
void add_metrics_routes(Router& router, Service& service);
void add_model_routes(Router& router, Service& service);
void add_generation_routes(Router& router, Service& service);
void add_response_routes(Router& router, Service& service);
void add_tokenize_routes(Router& router, Service& service);
void add_file_routes(Router& router, Service& service);
void add_batch_routes(Router& router, Service& service);
void add_openapi_routes(Router& router, Service& service);
void add_page_routes(Router& router, Service& service);

}  // namespace deepinfer::serve
