# The dashboard and the simulated server; `docker compose up` runs both with Prometheus and Grafana.
FROM python:3.11-slim
WORKDIR /build
COPY . .
RUN pip install --no-cache-dir '.[dashboard,serve]' && rm -rf /build
RUN useradd --create-home draftcast
USER draftcast
WORKDIR /home/draftcast
# Compiled once, while the image is built.
RUN draftcast simulate default --set workload.num_requests=20 --set statistics.replications=1
EXPOSE 8000 8501
ENTRYPOINT ["draftcast"]
CMD ["dashboard", "--address", "0.0.0.0"]
